-- Stops this session from receiving the notifications of listen.sql; other channels are not affected.
UNLISTEN lockapi
