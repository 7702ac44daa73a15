// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"time"
)

const (
	retryLeast = 20 * time.Millisecond
	retryMost  = 250 * time.Millisecond // a lease that moves waits so long for its guest at most
	lasted     = time.Second
)

// A guest daemon has programs of its guest use leases: by ports of 127.0.0.1, and an environment file that names them.
// It opens nothing else, and holds no secret.
type guestDaemon struct {
	doorman     string
	environment string // file; "": none is written
	leases      map[string]*guestLease
}

// A guestLease is one lease here.
type guestLease struct {
	offer     offer
	session   *session
	listeners []net.Listener
	over      chan struct{}
}

// knock connects to the doorman, echoes its nonce, and asks for a lease; "": for what there is.
func knock(doorman, lease string) (pipe, error) {
	p, err := reach(doorman)
	if err != nil {
		return nil, err
	}
	_ = p.SetDeadline(deadline())
	_, nonce, err := readFrame(p, challenge)
	if err == nil {
		_, err = p.Write(frame(header{kind: answer}, append(nonce, lease...)))
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// run follows what the doorman offers; it returns no more.
func (g *guestDaemon) run() {
	known := ""
	retry(nil, func() {
		p, err := knock(g.doorman, "")
		if err == nil {
			err = g.follow(p)
			p.Close()
		}
		if err.Error() != known {
			known = err.Error()
			log("doorman: %v", err)
		}
	})
}

// retry does the same until it is over: soon again where it lasted, ever later where it did not.
func retry(over <-chan struct{}, do func()) {
	for wait := retryLeast; ; {
		begun := time.Now()
		do()
		if time.Since(begun) > lasted {
			wait = retryLeast
		}
		select {
		case <-over:
			return
		case <-time.After(wait):
		}
		if wait *= 2; wait > retryMost {
			wait = retryMost
		}
	}
}

func (g *guestDaemon) follow(p pipe) error {
	for {
		_ = p.SetDeadline(deadline()) // it says something twice a second
		h, text, err := readFrame(p, offers, ping)
		if err != nil {
			return err
		}
		if h.kind == ping {
			continue
		}
		var found []offer
		if err := json.Unmarshal(text, &found); err != nil {
			return err
		}
		if err := g.obey(found); err != nil {
			return err
		}
	}
}

// obey opens what is new, and ends what is no longer offered.
func (g *guestDaemon) obey(found []offer) error {
	now := map[string]offer{}
	for _, each := range found {
		if each.Lease == "" || len(each.Lease) > mostLeaseBytes || each.Ports == 0 || int(each.Port)+int(each.Ports) > 1<<16 {
			return fmt.Errorf("lease %q cannot have ports %d and the %d after it", each.Lease, each.Port, each.Ports)
		}
		now[each.Lease] = each
	}
	for id, known := range g.leases {
		each, is := now[id]
		if !is || each.Port != known.offer.Port || each.Ports != known.offer.Ports {
			known.end()
			delete(g.leases, id)
		}
	}
	for id, each := range now {
		if _, is := g.leases[id]; !is {
			made, err := g.begin(each)
			if err != nil {
				return err
			}
			g.leases[id] = made
		}
	}
	return g.write(found)
}

func (g *guestDaemon) begin(of offer) (*guestLease, error) {
	made := &guestLease{offer: of, over: make(chan struct{})}
	var id [idBytes]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	made.session = newSession(id, true)
	for number := uint16(0); number < of.Ports; number++ {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", of.Port+number))
		if err != nil {
			made.end()
			return nil, err
		}
		made.listeners = append(made.listeners, listener)
		go made.take(listener, number)
	}
	go made.carry(g.doorman)
	return made, nil
}

// take has programs' connections become streams.
func (l *guestLease) take(from net.Listener, number uint16) {
	for {
		conn, err := from.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			log("accept: %v", err)
			time.Sleep(retryLeast)
			continue
		}
		if err := l.session.add(conn.(*net.TCPConn), number); err != nil {
			log("lease %s: %v", l.offer.Lease, err)
			abort(conn.(*net.TCPConn))
		}
	}
}

// carry has the session carried by one connection after the other.
func (l *guestLease) carry(doorman string) {
	var gateway [idBytes]byte
	retry(l.over, func() {
		resumes := l.session.carried()
		err := l.once(doorman, &gateway)
		if l.session.carried() != resumes {
			log("lease %s: the link broke: %v", l.offer.Lease, err)
		}
	})
}

func (l *guestLease) once(doorman string, gateway *[idBytes]byte) error {
	p, err := knock(doorman, l.offer.Lease)
	if err != nil {
		return err
	}
	defer p.Close()
	h, why, err := readFrame(p, admitted, refused)
	if err != nil {
		return err
	} else if h.kind == refused {
		return errors.New(string(why))
	}
	return l.session.greet(p, gateway)
}

func (l *guestLease) end() {
	close(l.over)
	for _, each := range l.listeners {
		each.Close()
	}
	l.session.end()
}

// What programs' environments may hold here: nothing that a shell or systemd reads otherwise.
var (
	variable = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,63}$`)
	value    = regexp.MustCompile(`^[A-Za-z0-9_./:,@+=-]{0,256}$`)
)

// write replaces the environment file.
func (g *guestDaemon) write(found []offer) error {
	if g.environment == "" {
		return nil
	}
	var lines []string
	for _, each := range found {
		for name, text := range each.Environment {
			if !variable.MatchString(name) || !value.MatchString(text) {
				return fmt.Errorf("lease %s: %q cannot be %q", each.Lease, name, text)
			}
			lines = append(lines, name+"="+text+"\n")
		}
	}
	sort.Strings(lines)
	draft, err := os.CreateTemp(filepath.Dir(g.environment), ".env-")
	if err != nil {
		return err
	}
	_, err = draft.WriteString(strings.Join(lines, ""))
	if failed := draft.Chmod(0o644); err == nil {
		err = failed
	}
	if failed := draft.Close(); err == nil {
		err = failed
	}
	if err == nil {
		err = os.Rename(draft.Name(), g.environment)
	}
	if err != nil {
		os.Remove(draft.Name())
	}
	return err
}

func runGuest(words []string) error {
	set := flag.NewFlagSet("guest", flag.ExitOnError)
	doorman := set.String("doorman", "vsock:10880", "vsock:PORT of the host; unix:PATH#CID stands in for it in tests")
	environment := set.String("environment", "", "file that gets the environment of programs; empty: none")
	_ = set.Parse(words) // it exits itself
	(&guestDaemon{*doorman, *environment, map[string]*guestLease{}}).run()
	return nil
}
