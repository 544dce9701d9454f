"""The declarations, one file for each family of groups."""
