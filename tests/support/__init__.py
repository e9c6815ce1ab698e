"""What several test folders share. Holds no tests."""
