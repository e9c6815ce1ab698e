"""Protocol files, and the checks of protocol documents from files and from clients."""
