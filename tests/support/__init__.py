"""What tests of several kinds use: programs, certificates, pages of the documentation."""
