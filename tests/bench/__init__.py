"""What fleet costs: measured on real runs, as users start them."""
