-- Opens a transaction of the isolation that every statement here is written for, which may write
-- whatever the role's default is. A hot standby refuses it with 0A000.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE
