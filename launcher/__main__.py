"""`python -m launcher` is `slipstream`."""

from launcher.cli import main

main()
