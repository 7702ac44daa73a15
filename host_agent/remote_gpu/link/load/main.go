// SPDX-License-Identifier: Apache-2.0

// load is the benchmark's part in Go (benchmarks/bench_rgpu.py): a server that takes and sends as many bytes as it is
// asked for, a relay that copies and does nothing else, and what measures both.
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	bufferBytes = 256 << 10 // as the doorman's
	messages    = 300       // round trips of which the median counts
	messageUp   = 64
	moved       = 64 << 20 // bytes each way for each size
)

func main() {
	if len(os.Args) < 3 {
		fail(fmt.Errorf("usage: load serve ADDRESS | relay FROM TO | measure PORT..."))
	}
	switch words := os.Args[2:]; os.Args[1] {
	case "serve":
		serve(words[0])
	case "relay":
		relay(words[0], words[1])
	case "measure":
		measure(words)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "load:", err)
	os.Exit(1)
}

func must[T any](made T, err error) T {
	if err != nil {
		fail(err)
	}
	return made
}

// split returns network and address of tcp:ADDRESS or unix:PATH.
func split(where string) (string, string) {
	network, address, _ := strings.Cut(where, ":")
	return network, address
}

func each(where string, do func(net.Conn)) {
	listener := must(net.Listen(split(where)))
	fmt.Println(listener.Addr())
	for {
		go do(must(listener.Accept()))
	}
}

// serve takes requests: how many bytes follow, and how many are asked for.
func serve(where string) {
	each(where, func(conn net.Conn) {
		defer conn.Close()
		buffer := make([]byte, bufferBytes)
		for {
			var asked [16]byte
			if _, err := io.ReadFull(conn, asked[:]); err != nil {
				return
			}
			if !take(conn, buffer, binary.BigEndian.Uint64(asked[:])) {
				return
			}
			if !give(conn, buffer, binary.BigEndian.Uint64(asked[8:])) {
				return
			}
		}
	})
}

func take(conn net.Conn, buffer []byte, n uint64) bool {
	for n > 0 {
		got, err := conn.Read(buffer[:least(n, bufferBytes)])
		if err != nil {
			return false
		}
		n -= uint64(got)
	}
	return true
}

func give(conn net.Conn, buffer []byte, n uint64) bool {
	for n > 0 {
		sent, err := conn.Write(buffer[:least(n, bufferBytes)])
		if err != nil {
			return false
		}
		n -= uint64(sent)
	}
	return true
}

func least(a, b uint64) uint64 {
	if a < b {
		return a
	}
	return b
}

// relay copies by a buffer of its own: without one, Go has the kernel move bytes between sockets, as no TLS can.
func relay(from, to string) {
	each(from, func(conn net.Conn) {
		other := must(net.Dial(split(to)))
		go copied(conn, other)
		copied(other, conn)
	})
}

func copied(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, bufferBytes)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

type client struct {
	conn   net.Conn
	buffer []byte
}

func (c client) ask(up, down uint64) {
	var head [16]byte
	binary.BigEndian.PutUint64(head[:], up)
	binary.BigEndian.PutUint64(head[8:], down)
	must(c.conn.Write(head[:]))
	if !give(c.conn, c.buffer, up) || !take(c.conn, c.buffer, down) {
		fail(fmt.Errorf("the server is gone"))
	}
}

// measure has a client on each port, all at once; it prints the median round trip of the first, and MB/s of all.
func measure(ports []string) {
	var all []client
	for _, port := range ports {
		must(strconv.ParseUint(port, 10, 16))
		all = append(all, client{must(net.Dial("tcp", "127.0.0.1:"+port)), make([]byte, bufferBytes)})
	}
	found := map[string]float64{}
	together(all, func(c client) { c.ask(1<<20, 1<<20) }) // connections are there, windows are open
	var trips []float64
	for n := 0; n < messages; n++ {
		begun := time.Now()
		all[0].ask(messageUp, messageUp)
		trips = append(trips, float64(time.Since(begun).Nanoseconds())/1e3)
	}
	sort.Float64s(trips)
	found["latency_us"] = trips[len(trips)/2]
	for name, size := range map[string]uint64{"1mib": 1 << 20, "16mib": 16 << 20} {
		for way, up := range map[string]bool{"write": true, "read": false} {
			begun := time.Now()
			together(all, func(c client) {
				for sent := uint64(0); sent < moved; sent += size {
					if up {
						c.ask(size, 1)
					} else {
						c.ask(0, size)
					}
				}
			})
			found[way+"_"+name] = float64(len(all)) * moved / 1e6 / time.Since(begun).Seconds()
		}
	}
	must(0, json.NewEncoder(os.Stdout).Encode(found))
}

func together(all []client, do func(client)) {
	var done sync.WaitGroup
	for _, c := range all {
		done.Add(1)
		go func(c client) {
			defer done.Done()
			do(c)
		}(c)
	}
	done.Wait()
}
