"""What makes, measures and checks this tree; no part of the package."""
