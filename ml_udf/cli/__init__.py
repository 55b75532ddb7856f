"""The command line, `ml-udf …`."""
