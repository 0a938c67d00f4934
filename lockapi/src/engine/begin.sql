-- Opens a transaction of the isolation that every statement here is written for.
BEGIN ISOLATION LEVEL READ COMMITTED
