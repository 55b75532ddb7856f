"""`python -m ml_udf.cli`: the command line where its script is not on PATH."""

from ml_udf.cli import main

main()
