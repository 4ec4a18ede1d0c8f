"""The list of the judge, and what it leaves to chance."""

from pathlib import Path

from support.listed_differences import read_limits

PAGE = Path(__file__).with_name("differences.md")
LIMITS = read_limits(PAGE)
"""They stand in differences.md and nowhere else; the tests play each from both sides."""
