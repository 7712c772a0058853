"""Floor 5: from records to numbers to tables. No torch."""
