"""`make bench`: the cost of a job, measured with real processes. Not part of the tests."""
