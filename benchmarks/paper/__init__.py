"""The figures and tables of POET's paper, drawn again from this code; README.md says how."""
