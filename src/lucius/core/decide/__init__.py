"""The `decide` function: computes from a job and an input the next values of everything that changes."""
