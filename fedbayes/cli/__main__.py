"""`python -m fedbayes.cli`: the command without its script."""

from fedbayes.cli.command import main

main()
