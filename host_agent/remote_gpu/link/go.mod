module nova-numa-ext/numa-ext-rgpu

go 1.19
