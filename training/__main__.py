"""`python -m training`, which `slipstream train` runs."""

from __future__ import annotations

from slipstream.extras import explained

if __name__ == "__main__":
    with explained("train", "slipstream train"):
        from training.cli import main

        main()
