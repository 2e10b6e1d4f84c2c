module podwire-cluster/pod

go 1.26.0
