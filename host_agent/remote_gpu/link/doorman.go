// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"reflect"
	"sync"
	"time"
)

const (
	lookEvery     = 500 * time.Millisecond
	relayBytes    = 256 << 10
	mostOfGuest   = 64 // connections of one guest, its handshakes among them
	leastGuestCID = 3  // below are the hypervisor, the machine itself and the host
)

// An attachment is a lease of a server that runs on this host.
type attachment struct {
	Lease   string `json:"lease"`
	Epoch   uint64 `json:"epoch"`
	CID     uint32 `json:"cid"`
	PID     int    `json:"pid"`     // of the server's QEMU
	Started uint64 `json:"started"` // when that began, ticks since boot
	Host    string `json:"host"`    // of the GPU, as its certificate names it
	Address string `json:"address"` // of the lease's gateway
	MBps    uint64 `json:"mbps"`    // promised, megabytes a second; 0: no limit
	Port    uint16 `json:"port"`    // first of the ports on the guest's 127.0.0.1
	Ports   uint16 `json:"ports"`   // how many
	// What the guest's programs find the GPU by.
	Environment map[string]string `json:"environment"`
}

// An offer is what a guest learns of a lease.
type offer struct {
	Lease       string            `json:"lease"`
	Port        uint16            `json:"port"`
	Ports       uint16            `json:"ports"`
	Environment map[string]string `json:"environment,omitempty"`
}

// A doorman leads guests to the gateways of their leases. It reads which there are from a file that is replaced as a
// whole, so that who writes it may be restarted.
type doorman struct {
	pki  *pki
	file string

	mu     sync.Mutex
	relays map[*relay]struct{}
	guests map[uint32]int
	// Why the file could not be read, which is logged once.
	trouble string
}

// A relay is a guest's connection, and the one to the gateway once there is one.
type relay struct {
	by     *attachment // nil: it gets offers
	guest  pipe
	conn   *sealed
	socket *net.TCPConn
}

func (r *relay) cut() {
	r.guest.Close()
	if r.conn != nil {
		r.conn.Close()
	}
}

func newDoorman(p *pki, file string) *doorman {
	return &doorman{pki: p, file: file, relays: map[*relay]struct{}{}, guests: map[uint32]int{}}
}

// attachments returns what the file says now of one guest.
func (d *doorman) attachments(cid uint32) (found []attachment, err error) {
	all, err := d.read()
	for _, each := range all {
		if each.CID == cid {
			found = append(found, each)
		}
	}
	return found, err
}

func (d *doorman) read() ([]attachment, error) {
	text, err := os.ReadFile(d.file)
	if err != nil {
		return nil, err
	}
	var found struct {
		Attachments []attachment `json:"attachments"`
	}
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, fmt.Errorf("%s: %w", d.file, err)
	}
	owner := map[uint32]int{}
	for _, each := range found.Attachments {
		if pid, is := owner[each.CID]; is && pid != each.PID {
			return nil, fmt.Errorf("%s: CID %d is of processes %d and %d", d.file, each.CID, pid, each.PID)
		}
		owner[each.CID] = each.PID
	}
	return found.Attachments, nil
}

func (d *doorman) serve(from listener) {
	for {
		guest, cid, err := from.take()
		if errors.Is(err, os.ErrClosed) || errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			log("accept: %v", err)
			time.Sleep(retryLeast)
			continue
		}
		if cid < leastGuestCID || cid == anyCID || !d.count(cid, 1) {
			guest.Close()
			continue
		}
		go func() {
			defer d.count(cid, -1)
			defer guest.Close()
			if err := d.door(guest, cid); err != nil {
				log("guest %d: %v", cid, err)
			}
		}()
	}
}

// count adds to a guest's connections; false: there are too many.
func (d *doorman) count(cid uint32, n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.guests[cid]+n > mostOfGuest {
		return false
	}
	if d.guests[cid] += n; d.guests[cid] == 0 {
		delete(d.guests, cid)
	}
	return true
}

// door takes one connection of a guest until its end.
func (d *doorman) door(guest pipe, cid uint32) error {
	_ = guest.SetDeadline(deadline())
	found, err := d.attachments(cid)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return errors.New("no lease is of this guest")
	}
	// The file says whose CID it is now. As the process lives before and after the guest has echoed what it cannot have
	// known, the CID was its own all the time.
	owner, err := watchProcess(found[0].PID, found[0].Started)
	if err != nil {
		return err
	}
	defer owner.Close()
	lease, err := ask(guest)
	if err != nil {
		return err
	}
	if found, err = d.attachments(cid); err != nil {
		return err
	}
	if !owner.alive() {
		return errors.New("its process has ended")
	}
	r := &relay{guest: guest}
	for at := range found {
		if found[at].Lease == lease {
			r.by = &found[at]
		}
	}
	if lease != "" && r.by == nil {
		_, _ = guest.Write(frame(header{kind: refused}, []byte("this lease is not of this guest"))) // it is cut next
		return errors.New("it asked for a lease that is not its own")
	}
	d.mu.Lock()
	d.relays[r] = struct{}{}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.relays, r)
		d.mu.Unlock()
	}()
	over := make(chan struct{})
	defer close(over)
	go func() {
		owner.wait()
		select {
		case <-over:
		default:
			d.mu.Lock()
			defer d.mu.Unlock()
			r.cut()
		}
	}()
	if r.by == nil {
		return d.offer(guest, cid)
	}
	return d.lead(r)
}

// ask has the guest echo a nonce; it returns the lease that the guest asks for, "" for all that there are.
func ask(guest pipe) (string, error) {
	nonce := make([]byte, nonceBytes)
	if _, err := rand.Read(nonce); err != nil {
		return "", err
	}
	if _, err := guest.Write(frame(header{kind: challenge}, nonce)); err != nil {
		return "", err
	}
	_, payload, err := readFrame(guest, answer)
	if err != nil {
		return "", err
	}
	if subtle.ConstantTimeCompare(payload[:nonceBytes], nonce) != 1 {
		return "", errors.New("the guest did not echo the nonce")
	}
	return string(payload[nonceBytes:]), nil
}

// offer keeps a guest informed of its leases.
func (d *doorman) offer(guest pipe, cid uint32) error {
	_ = guest.SetDeadline(time.Time{})
	var known []byte
	for {
		found, err := d.attachments(cid)
		if err != nil {
			return err
		}
		leases := make([]offer, 0, len(found))
		for _, each := range found {
			leases = append(leases, offer{each.Lease, each.Port, each.Ports, each.Environment})
		}
		now, err := json.Marshal(leases)
		if err != nil {
			return err
		}
		if len(now) > mostOfferBytes {
			return fmt.Errorf("%d bytes of leases", len(now))
		}
		kindOf := header{kind: offers}
		if string(now) == string(known) {
			kindOf, now = header{kind: ping}, nil
		} else {
			known = now
		}
		if _, err := guest.Write(frame(kindOf, now)); err != nil {
			return nil // the guest is gone
		}
		time.Sleep(lookEvery)
	}
}

// lead connects a guest to the gateway of its lease, and copies until one of them ends.
func (d *doorman) lead(r *relay) error {
	conn, plain, err := d.connect(*r.by)
	if err != nil {
		_, _ = r.guest.Write(frame(header{kind: refused}, []byte("the gateway cannot be reached"))) // it is cut next
		return err
	}
	defer d.pki.forget(conn)
	d.mu.Lock()
	r.conn, r.socket = conn, plain
	d.mu.Unlock()
	h, why, err := readFrame(conn, admitted, refused)
	if err == nil {
		_, err = r.guest.Write(frame(h, why))
	}
	if err == nil && h.kind == refused {
		err = errors.New("the gateway refused: " + string(why))
	}
	if err != nil {
		return err
	}
	_ = r.guest.SetDeadline(time.Time{})
	_ = conn.SetDeadline(time.Time{})
	var both sync.WaitGroup
	both.Add(2)
	for _, way := range [][2]pipe{{r.guest, conn}, {conn, r.guest}} {
		go func(from, to pipe) {
			defer both.Done()
			carryBytes(from, to)
			d.mu.Lock()
			r.cut()
			d.mu.Unlock()
		}(way[0], way[1])
	}
	both.Wait()
	return nil
}

// carryBytes copies until one of them breaks: what that means is for the ends to find out.
func carryBytes(from, to pipe) {
	buffer := make([]byte, relayBytes)
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

// connect opens the connection to a gateway, and shows it the lease and its epoch.
func (d *doorman) connect(by attachment) (*sealed, *net.TCPConn, error) {
	dialed, err := net.DialTimeout("tcp", by.Address, handshakeLimit)
	if err != nil {
		return nil, nil, err
	}
	plain := dialed.(*net.TCPConn)
	_ = plain.SetDeadline(deadline())
	conn, err := d.pki.client(plain, by.Host)
	if err != nil {
		return nil, nil, err
	}
	if err = pace(plain, by.MBps*bytesPerMB); err == nil {
		_, err = conn.Write(frame(header{kind: admit, offset: by.Epoch}, []byte(by.Lease)))
	}
	if err != nil {
		d.pki.forget(conn)
	}
	return conn, plain, err
}

// look cuts what the file no longer allows. A file that cannot be read changes nothing.
func (d *doorman) look() {
	now, err := d.read()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		if d.trouble != err.Error() {
			d.trouble = err.Error()
			log("attachments are as they were: %v", err)
		}
		return
	}
	d.trouble = ""
	for r := range d.relays {
		if r.by == nil {
			continue // who gets offers learns of it there
		}
		allowed := false
		for at := range now {
			same := now[at]
			same.MBps, same.Environment = r.by.MBps, r.by.Environment
			if !reflect.DeepEqual(same, *r.by) {
				continue
			}
			allowed = true
			if now[at].MBps != r.by.MBps && r.socket != nil {
				if err := pace(r.socket, now[at].MBps*bytesPerMB); err != nil {
					log("lease %s: %v", r.by.Lease, err)
				}
				r.by.MBps = now[at].MBps
			}
		}
		if !allowed {
			r.cut()
		}
	}
}

func runDoorman(words []string) error {
	set := flag.NewFlagSet("doorman", flag.ExitOnError)
	p := &pki{}
	p.flags(set, "client")
	where := set.String("listen", "vsock:10880", "vsock:PORT; unix:PATH stands in for it in tests")
	file := set.String("attachments", "/var/lib/numa-host-agent/leases/attachments.json", "which guest has which lease")
	_ = set.Parse(words) // it exits itself
	if err := p.load(); err != nil {
		return err
	}
	from, err := listen(*where)
	if err != nil {
		return err
	}
	d := newDoorman(p, *file)
	onHangup(p.load)
	go func() {
		for ; ; time.Sleep(lookEvery) {
			d.look()
		}
	}()
	d.serve(from)
	return nil
}
