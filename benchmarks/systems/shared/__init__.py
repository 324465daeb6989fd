"""What several systems share. Each of them is a file beside this folder."""
