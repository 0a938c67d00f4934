-- Has this session no longer hear what listen.sql has it hear; other channels are left as they are.
UNLISTEN lockapi
