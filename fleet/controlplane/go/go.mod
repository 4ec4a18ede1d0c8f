// It marks the folder of main.go as a module, and says which Go builds every release. A release
// builds with a file of its own: `go build -modfile=v1.36.3.mod .`
module controlplane

go 1.26.0
