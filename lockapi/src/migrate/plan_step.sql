-- Version {version}: {name}
{sql}
INSERT INTO lockapi.migration (version, name, checksum) VALUES ({version}, '{name}', '{checksum}');
