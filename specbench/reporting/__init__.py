"""Reports: tables, notes, plots and pages from summaries of runs. Imports no torch."""
