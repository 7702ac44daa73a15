// SPDX-License-Identifier: Apache-2.0

// numa-ext-rgpu carries the use of a remote GPU from a guest to the lease's server on another host:
//
//	program ─ TCP on 127.0.0.1 ─ guest ═ vsock ═ doorman ═ TLS 1.3 ═ gateway ─ TCP on 127.0.0.1 ─ server
//
// The streams between guest and gateway (session.go) outlive what carries them: a link that breaks is replaced by
// another one, and goes on at the byte where the old one ended. The doorman, on the compute host, knows guests by their
// CID (doorman.go) and gateways by their certificates (pki.go), and copies bytes. Frames are in frame.go.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

var commands = map[string]func([]string) error{
	"guest": runGuest, "doorman": runDoorman, "gateway": runGateway, "hold": runHold, "send": runSend, "receive": runReceive,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: numa-ext-rgpu guest|doorman|gateway|hold|send|receive [OPTIONS]")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		log("%v", err)
		os.Exit(1)
	}
}

// log writes a line for the journal.
func log(format string, words ...any) { fmt.Fprintf(os.Stderr, format+"\n", words...) }

// onHangup has files read again at each SIGHUP.
func onHangup(load func() error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	go func() {
		for range signals {
			if err := load(); err != nil {
				log("what was read before stays: %v", err)
			}
		}
	}()
}
