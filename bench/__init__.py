"""`make bench`: what a job costs, measured with real processes. Not part of the tests."""
