"""Results of measures: what a row has, and the files that rows and finished tests are kept in."""
