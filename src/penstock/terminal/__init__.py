"""The parts that the command line, the bench and the demo share: tables, progress, signals, and input files."""
