module fleet.emulator/sink

go 1.26
