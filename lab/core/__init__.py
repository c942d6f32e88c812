"""What every other part rests on: settings and their errors, files, commands, and charts."""
