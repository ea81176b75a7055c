"""`python -m launcher` is `slipstream`."""

from launcher.cli.app import main

main()
