-- Opens a transaction that may write, whatever the default of the role is.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE
