// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// hold has a holder listen, as it does beside a server.
func (h *house) hold() {
	name, err := unique("test-")
	h.must(err)
	listening, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name})
	h.must(err)
	h.t.Cleanup(func() { listening.Close() })
	made := &holder{server: 7}
	go func() {
		for {
			conn, err := listening.AcceptUnix()
			if err != nil {
				return
			}
			_ = made.obey(conn)
		}
	}()
	h.gateway.holder = name
}

// replaced has another gateway go on, as on another host, at the next epoch.
func (h *house) replaced(given *handover) {
	made, err := newGateway(h.gpu, testLease, h.gateway.ports, h.gateway.serving)
	h.must(err)
	made.holder, made.listener = h.gateway.holder, listenLocal(h.t)
	h.gateway = made
	h.t.Cleanup(made.session.end)
	h.must(made.thaw(given))
	h.known[0].Epoch++
	h.known[0].Address = made.listener.Addr().String()
	h.must(made.learn(terms{Epoch: h.known[0].Epoch, Client: computeHost}))
	go made.serve()
	h.write()
}

// frozen returns what the gateway hands over, as it comes to another host.
func (h *house) frozen() *handover {
	handed, err := h.gateway.freeze()
	h.must(err)
	text, err := json.Marshal(handed)
	h.must(err)
	given := &handover{}
	h.must(json.Unmarshal(text, given))
	return given
}

func TestOtherGatewaysGoOnAtTheByte(t *testing.T) {
	h := newHouse(t)
	h.hold()
	const streams = 3
	done := make(chan error, streams)
	for n := 0; n < streams; n++ {
		conn := h.dial()
		h.must(exchangeByte(conn))
		go func(n int) { done <- exchange(conn, int64(n), 8*windowBytes) }(n)
	}
	for n := 0; n < 6; n++ {
		time.Sleep(time.Duration(n) * 3 * time.Millisecond)
		old := h.gateway
		given := h.frozen()
		if len(old.session.streams) != 0 {
			t.Fatalf("%d streams stay", len(old.session.streams))
		}
		if _, err := old.freeze(); err == nil {
			t.Fatal("it was frozen twice")
		}
		h.must(old.learn(terms{Epoch: h.known[0].Epoch, Client: computeHost}))
		if old.admit(nil, nil, testLease, h.known[0].Epoch) == "" {
			t.Fatal("who is frozen still takes doormen")
		}
		h.replaced(given)
	}
	for n := 0; n < streams; n++ {
		h.must(<-done)
	}
	if err := exchange(h.dial(), 9, 1<<20); err != nil {
		t.Fatalf("a new stream: %v", err)
	}
}

func TestAGatewayGoesOnWithWhatItHasHandedOverItself(t *testing.T) {
	h := newHouse(t)
	h.hold()
	conn := h.dial()
	h.must(exchangeByte(conn))
	done := make(chan error, 1)
	go func() { done <- exchange(conn, 2, 4*windowBytes) }()
	time.Sleep(5 * time.Millisecond)
	given := h.frozen()
	h.must(h.gateway.thaw(given))
	h.must(h.gateway.learn(terms{Epoch: 1, Client: computeHost}))
	h.must(<-done)
}

func TestAHandoverThatCannotBeIsRefused(t *testing.T) {
	good := func() *handover {
		return &handover{
			Gateway: make([]byte, idBytes), Guest: make([]byte, idBytes), Last: 2,
			Streams: []handedOver{{ID: 1, Received: 5, Delivered: 3, In: []byte("ab")}, {ID: 2, PeerEnded: true, Received: 4, Delivered: 4}},
		}
	}
	if err := good().check(2); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*handover){
		"a connection less":  func(h *handover) { h.Streams = h.Streams[:1] },
		"an identity":        func(h *handover) { h.Guest = h.Guest[1:] },
		"the order":          func(h *handover) { h.Streams[1].ID = 1 },
		"a stream of none":   func(h *handover) { h.Last = 1 },
		"an end of no byte":  func(h *handover) { h.Streams[1].Received, h.Streams[1].Delivered = 0, 0 },
		"more than all":      func(h *handover) { h.Streams[0].Delivered, h.Streams[0].Received = 1<<64-1, 1 },
		"bytes that lack":    func(h *handover) { h.Streams[0].In = h.Streams[0].In[1:] },
		"more than a window": func(h *handover) { h.Streams[0].Out = make([]byte, windowBytes+1) },
	} {
		spoilt := good()
		spoil(spoilt)
		if spoilt.check(2) == nil {
			t.Errorf("%s was not noticed", name)
		}
	}
}

// between returns the two ends of a move between hosts, each with the certificate that it is given.
func between(t *testing.T, a *authority, from, to string, use x509.ExtKeyUsage) (*move, *move) {
	t.Helper()
	folder := t.TempDir()
	ends := [2]*move{}
	for at, host := range []string{from, to} {
		files, _ := a.issue(filepath.Join(folder, host), host, use)
		a.must(files.load())
		ends[at] = &move{pki: files, lease: testLease, epoch: 4, folder: filepath.Join(folder, host, "images")}
		a.must(os.MkdirAll(ends[at].folder, 0o700))
	}
	ends[0].host, ends[1].host = to, from
	return ends[0], ends[1]
}

func TestImagesGoToTheOtherHostAndTheAnswerComesBack(t *testing.T) {
	for _, why := range []string{"", "no such GPU"} {
		from, to := between(t, newAuthority(t, "the operator"), "gpu1", "gpu2", x509.ExtKeyUsageServerAuth)
		large := make([]byte, 3<<20)
		rand.New(rand.NewSource(1)).Read(large)
		from.must(t, os.WriteFile(filepath.Join(from.folder, "pages-1.img"), large, 0o600))
		from.must(t, os.WriteFile(filepath.Join(from.folder, "empty"), nil, 0o600))
		listening := listenLocal(t)
		over := make(chan error, 1)
		go func() { over <- to.receive(listening, 64<<20, func() string { return why }) }()
		var told int64
		err := from.send(listening.Addr().String(), 0, func(sent, _ int64) { told = sent })
		if (err == nil) != (why == "") || err != nil && !strings.Contains(err.Error(), why) {
			t.Fatalf("%q came back as %v", why, err)
		}
		if got := <-over; (got == nil) != (why == "") {
			t.Fatalf("the receiver ends with %v", got)
		}
		found, err := os.ReadFile(filepath.Join(to.folder, "pages-1.img"))
		from.must(t, err)
		if !bytes.Equal(found, large) || told != int64(len(large)) {
			t.Fatalf("%d bytes came of %d, %d were told of", len(found), len(large), told)
		}
	}
}

func TestImagesOfWhoMayNotAreRefusedAndTheRightOnesStillTaken(t *testing.T) {
	a := newAuthority(t, "the operator")
	from, to := between(t, a, "gpu1", "gpu2", x509.ExtKeyUsageServerAuth)
	listening := listenLocal(t)
	over := make(chan error, 1)
	go func() { over <- to.receive(listening, 1<<20, func() string { return "" }) }()
	compute, _ := between(t, a, "gpu1", "gpu2", x509.ExtKeyUsageClientAuth)
	foreign, _ := between(t, newAuthority(t, "another one"), "gpu1", "gpu2", x509.ExtKeyUsageServerAuth)
	third, _ := between(t, a, "gpu3", "gpu2", x509.ExtKeyUsageServerAuth)
	foreign.pki.ca = from.pki.ca // it trusts the receiver, which does not trust it
	from.must(t, foreign.pki.load())
	late, _ := between(t, a, "gpu1", "gpu2", x509.ExtKeyUsageServerAuth)
	late.epoch = 3
	for name, each := range map[string]*move{"compute host": compute, "foreign": foreign, "third": third, "late": late} {
		if err := each.send(listening.Addr().String(), 0, func(int64, int64) {}); err == nil {
			t.Errorf("images of the %s were taken", name)
		}
	}
	from.must(t, from.send(listening.Addr().String(), 0, func(int64, int64) {}))
	from.must(t, <-over)
}

func TestMoreImagesThanAgreedAreRefused(t *testing.T) {
	from, to := between(t, newAuthority(t, "the operator"), "gpu1", "gpu2", x509.ExtKeyUsageServerAuth)
	from.must(t, os.WriteFile(filepath.Join(from.folder, "pages-1.img"), make([]byte, 2<<20), 0o600))
	listening := listenLocal(t)
	over := make(chan error, 1)
	go func() { over <- to.receive(listening, 1<<20, func() string { t.Error("it was restored"); return "" }) }()
	if err := from.send(listening.Addr().String(), 0, func(int64, int64) {}); err == nil {
		t.Error("they were taken")
	}
	if err := <-over; err == nil {
		t.Error("the receiver has not noticed")
	}
}

func (m *move) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
