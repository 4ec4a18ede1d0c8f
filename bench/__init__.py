"""What fleet costs: measured on real runs, as users start them.

Without the node agents of shipped profiles, unless $FLEET_NO_AGENTS is 0.
"""

import os

os.environ.setdefault("FLEET_NO_AGENTS", "1")
