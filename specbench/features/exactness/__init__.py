"""Tests of whether tokens follow a distribution: their false alarms, their power, and what they would miss."""
