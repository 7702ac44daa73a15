module nova-numa-ext/link

go 1.19
