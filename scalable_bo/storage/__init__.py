"""What a study keeps, in memory and on disk, and how it is read again."""
