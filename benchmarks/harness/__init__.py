"""What every measure needs: folders, processes, servers, interpreters; and what was measured."""
