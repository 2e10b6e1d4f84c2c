module podwire-cluster/agnhost

go 1.26.0
