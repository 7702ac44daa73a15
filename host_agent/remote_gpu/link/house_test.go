// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	testLease   = "6b1d0f7c-0000-4000-8000-000000000001"
	computeHost = "compute1"
	gpuHost     = "gpu1"
	guestCID    = 7
)

// An authority signs what a test needs: the product signs nothing.
type authority struct {
	t           testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	serial      int64
}

func newAuthority(t testing.TB, name string) *authority {
	a := &authority{t: t, serial: 1}
	shape := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	a.certificate, a.key = a.sign(shape)
	return a
}

func (a *authority) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) sign(shape *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	a.must(err)
	shape.SerialNumber = big.NewInt(a.serial)
	shape.NotBefore, shape.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	a.serial++
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = shape, key
	}
	der, err := x509.CreateCertificate(crand.Reader, shape, parent, &key.PublicKey, signer)
	a.must(err)
	made, err := x509.ParseCertificate(der)
	a.must(err)
	return made, key
}

// issue writes the files of a host into a folder; serial is its certificate's.
func (a *authority) issue(folder, host string, uses ...x509.ExtKeyUsage) (files *pki, serial *big.Int) {
	made, key := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: host}, DNSNames: []string{host}, ExtKeyUsage: uses,
		KeyUsage: x509.KeyUsageDigitalSignature,
	})
	a.must(os.MkdirAll(folder, 0o700))
	der, err := x509.MarshalECPrivateKey(key)
	a.must(err)
	files = &pki{
		ca: filepath.Join(folder, "ca.pem"), certificate: filepath.Join(folder, "cert.pem"),
		key: filepath.Join(folder, "key.pem"), crl: filepath.Join(folder, "crl.pem"),
	}
	a.write(files.ca, "CERTIFICATE", a.certificate.Raw)
	a.write(files.certificate, "CERTIFICATE", made.Raw)
	a.write(files.key, "EC PRIVATE KEY", der)
	return files, made.SerialNumber
}

func (a *authority) write(file, kind string, der []byte) {
	a.must(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// revoke writes a list that ends then.
func (a *authority) revoke(file string, until time.Time, serials ...*big.Int) {
	shape := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: until}
	for _, each := range serials {
		shape.RevokedCertificates = append(shape.RevokedCertificates,
			pkix.RevokedCertificate{SerialNumber: each, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(crand.Reader, shape, a.certificate, a.key)
	a.must(err)
	a.write(file, "X509 CRL", der)
}

// A house is all of it in one process: a guest, its doorman, a gateway and an echo in place of the server.
type house struct {
	t         testing.TB
	folder    string
	authority *authority
	compute   *pki
	gpu       *pki
	serials   [2]*big.Int // of compute, of gpu
	gateway   *gateway
	doorman   *doorman
	door      listener
	known     []attachment
	guest     *guestDaemon
	port      uint16 // in the guest
	mu        sync.Mutex
	serving   bool
}

func newHouse(t testing.TB) *house {
	h := &house{t: t, folder: t.TempDir(), authority: newAuthority(t, "the operator"), serving: true}
	h.compute, h.serials[0] = h.authority.issue(h.folder+"/compute", computeHost, x509.ExtKeyUsageClientAuth)
	h.gpu, h.serials[1] = h.authority.issue(h.folder+"/gpu", gpuHost, x509.ExtKeyUsageServerAuth)
	h.must(h.compute.load())
	h.must(h.gpu.load())
	server := listenLocal(t)
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go echo(conn.(*net.TCPConn))
		}
	}()
	h.open(portOf(server))
	started, _, err := processStat(os.Getpid())
	h.must(err)
	h.port = freePort(t)
	h.known = []attachment{{
		Lease: testLease, Epoch: 1, CID: guestCID, PID: os.Getpid(), Started: started, Host: gpuHost,
		Address: h.gateway.listener.Addr().String(), Port: h.port, Ports: 1,
		Environment: map[string]string{"POCL_DEVICES": "remote"},
	}}
	h.write()
	h.begin()
	h.guest = &guestDaemon{h.where(guestCID), h.folder + "/env", map[string]*guestLease{}}
	return h
}

// open opens a gateway to a server's port, at epoch 1.
func (h *house) open(port uint16) {
	var err error
	h.gateway, err = newGateway(h.gpu, testLease, []string{fmt.Sprint(port)}, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.serving
	})
	h.must(err)
	h.gateway.listener = listenLocal(h.t)
	h.must(h.gateway.learn(terms{Epoch: 1, Client: computeHost}))
	go h.gateway.serve()
	h.t.Cleanup(h.gateway.session.end)
}

func portOf(l net.Listener) uint16 { return uint16(l.Addr().(*net.TCPAddr).Port) }

func freePort(t testing.TB) uint16 {
	l := listenLocal(t)
	defer l.Close()
	return portOf(l)
}

func (h *house) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) where(cid uint32) string { return fmt.Sprintf("unix:%s/door#%d", h.folder, cid) }

// write replaces the doorman's file.
func (h *house) write() {
	text, err := json.Marshal(map[string]any{"attachments": h.known})
	h.must(err)
	h.must(os.WriteFile(h.folder+"/draft", text, 0o600))
	h.must(os.Rename(h.folder+"/draft", h.folder+"/attachments.json"))
}

// begin starts a doorman.
func (h *house) begin() {
	var err error
	os.Remove(h.folder + "/door")
	h.door, err = listen("unix:" + h.folder + "/door")
	h.must(err)
	h.doorman = newDoorman(h.compute, h.folder+"/attachments.json")
	go h.doorman.serve(h.door)
	h.t.Cleanup(h.stop)
}

// stop ends the doorman with all that it leads.
func (h *house) stop() {
	h.door.Close()
	h.doorman.mu.Lock()
	defer h.doorman.mu.Unlock()
	for r := range h.doorman.relays {
		r.cut()
	}
}

// dial connects a program in the guest.
func (h *house) dial() *net.TCPConn {
	conn, err := h.dialed()
	h.must(err)
	return conn
}

// dialed connects a program in the guest, which may be reset before it knows that it is connected.
func (h *house) dialed() (*net.TCPConn, error) {
	if len(h.guest.leases) == 0 {
		h.must(h.guest.obey([]offer{{testLease, h.port, 1, h.known[0].Environment}}))
		h.t.Cleanup(func() { h.must(h.guest.obey(nil)) })
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", h.port))
	if err != nil {
		return nil, err
	}
	h.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	return conn.(*net.TCPConn), nil
}

// why returns why a guest that asks for the lease is not led to it; "": it is.
func (h *house) why(cid uint32, lease string) string {
	p, err := knock(h.where(cid), lease)
	if err != nil {
		return err.Error()
	}
	defer p.Close()
	found, text, err := readFrame(p, admitted, refused)
	if err != nil {
		return err.Error()
	} else if found.kind == refused {
		return string(text)
	}
	return ""
}

func (h *house) refuses(what string, cid uint32, lease string) {
	h.t.Helper()
	if h.why(cid, lease) == "" {
		h.t.Errorf("%s: not refused", what)
	}
}

func (h *house) admits(what string) {
	h.t.Helper()
	if why := h.why(guestCID, testLease); why != "" {
		h.t.Errorf("%s: %s", what, why)
	}
}

func TestAProgramInAGuestReachesItsServer(t *testing.T) {
	h := newHouse(t)
	for n := int64(0); n < 3; n++ {
		if err := exchange(h.dial(), n, 3<<20); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(h.folder + "/env")
	if err != nil || string(text) != "POCL_DEVICES=remote\n" {
		t.Errorf("environment %q: %v", text, err)
	}
}

func TestARestartedDoormanGoesOnWithTheStreams(t *testing.T) {
	h := newHouse(t)
	done := make(chan error, 1)
	conn := h.dial()
	h.must(exchangeByte(conn))
	go func() { done <- exchange(conn, 4, 4*windowBytes) }()
	for n := 0; n < 3; n++ {
		time.Sleep(10 * time.Millisecond)
		h.stop()
		h.begin()
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestOnlyTheGuestOfTheLeaseIsLedToIt(t *testing.T) {
	h := newHouse(t)
	for cid := uint32(0); cid < leastGuestCID; cid++ {
		h.known[0].CID = cid
		h.write()
		h.refuses(fmt.Sprintf("CID %d", cid), cid, testLease)
	}
	h.known[0].CID = guestCID
	other := h.known[0]
	other.Lease, other.CID = strings.Replace(testLease, "1", "2", 1), guestCID+1
	h.known = append(h.known, other)
	h.write()
	h.refuses("a guest without lease", guestCID+2, testLease)
	h.refuses("a neighbour's lease", guestCID, other.Lease)
	h.refuses("a neighbour", guestCID+1, testLease)
	h.admits("the guest itself")
}

func TestAGuestThatDoesNotEchoTheNonceIsCut(t *testing.T) {
	h := newHouse(t)
	p, err := reach(h.where(guestCID))
	h.must(err)
	defer p.Close()
	_ = p.SetDeadline(deadline())
	_, _, err = readFrame(p, challenge)
	h.must(err)
	_, err = p.Write(frame(header{kind: answer}, append(make([]byte, nonceBytes), testLease...)))
	h.must(err)
	if _, _, err := readFrame(p, admitted, refused, offers); err == nil {
		t.Error("it was answered")
	}
}

func TestAnOldEpochIsRefusedAndANewOneCutsIt(t *testing.T) {
	h := newHouse(t)
	conn := h.dial()
	h.must(exchangeByte(conn))
	h.must(h.gateway.learn(terms{Epoch: 2, Client: computeHost}))
	h.gateway.session.mu.Lock()
	if l := h.gateway.session.link; l != nil {
		select {
		case <-l.done:
		default:
			t.Error("the link of the old epoch lives when the new one is acknowledged")
		}
	}
	h.gateway.session.mu.Unlock()
	h.refuses("the old epoch", guestCID, testLease)
	h.known[0].Epoch = 2
	h.write()
	h.must(exchangeByte(conn)) // the stream goes on at the epoch that counts
	h.must(h.gateway.learn(terms{Epoch: 1, Client: computeHost}))
	h.must(exchangeByte(conn))
	h.must(h.gateway.learn(terms{Epoch: 2, Client: "compute2"}))
	h.refuses("another host of the server", guestCID, testLease)
}

func TestWhatTheFileNoLongerAllowsIsCut(t *testing.T) {
	h := newHouse(t)
	h.must(exchangeByte(h.dial()))
	resumes := h.gateway.session.carried()
	h.doorman.look()
	if h.gateway.session.carried() != resumes {
		t.Error("cut without a reason")
	}
	h.known[0].Epoch = 9
	h.write()
	h.doorman.look()
	eventually(t, "the link is cut", func() bool {
		h.gateway.session.mu.Lock()
		defer h.gateway.session.mu.Unlock()
		return h.gateway.session.link == nil
	})
}

// become has a host use another one's files, which it reads again as on SIGHUP.
func (h *house) become(host, other *pki) {
	h.t.Helper()
	for from, to := range map[string]string{other.ca: host.ca, other.certificate: host.certificate, other.key: host.key} {
		text, err := os.ReadFile(from)
		h.must(err)
		h.must(os.WriteFile(to, text, 0o600))
	}
	h.must(host.load())
}

func TestCertificatesOfOthersAreRefused(t *testing.T) {
	h := newHouse(t)
	foreign := newAuthority(t, "another operator")
	client, server := x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	for at, host := range []*pki{h.compute, h.gpu} {
		name, use, other := computeHost, client, server
		if at == 1 {
			name, use, other = gpuHost, server, client
		}
		for what, shape := range map[string]struct {
			by    *authority
			host  string
			uses  []x509.ExtKeyUsage
			trust bool // it has the operator's authority itself
		}{
			"another authority's":        {foreign, name, []x509.ExtKeyUsage{use}, true},
			"of another authority alone": {foreign, name, []x509.ExtKeyUsage{use}, false},
			"another host's":             {h.authority, name + "0", []x509.ExtKeyUsage{use}, false},
			"of the other kind of host":  {h.authority, name, []x509.ExtKeyUsage{other}, false},
			"without a use":              {h.authority, name, nil, false},
			"of all hosts":               {h.authority, "*", []x509.ExtKeyUsage{use}, false},
		} {
			made, _ := shape.by.issue(h.folder+"/other", shape.host, shape.uses...)
			if shape.trust {
				h.authority.write(made.ca, "CERTIFICATE", h.authority.certificate.Raw)
			}
			h.become(host, made)
			h.refuses(name+": a certificate "+what, guestCID, testLease)
		}
		made, _ := h.authority.issue(h.folder+"/other", name, use)
		h.become(host, made)
		h.admits(name + ": a certificate of its own")
	}
}

// shows says why the gateway does not take a peer that shows a certificate whoever is asked for; "": it does.
func (h *house) shows(files *pki) string {
	certificate, err := tls.LoadX509KeyPair(files.certificate, files.key)
	h.must(err)
	conn, err := tls.Dial("tcp", h.known[0].Address, &tls.Config{
		InsecureSkipVerify: true,
		// Go's own client shows none that is of no authority that it is told of.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil },
	})
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(deadline())
	_, err = conn.Write(frame(header{kind: admit, offset: h.known[0].Epoch}, []byte(testLease)))
	if err == nil {
		_, _, err = readFrame(conn, admitted)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func TestACertificateOfAnotherThatIsShownAllTheSameIsRefused(t *testing.T) {
	h := newHouse(t)
	for what, shape := range map[string]struct {
		by   *authority
		host string
		use  x509.ExtKeyUsage
	}{
		"of another authority":    {newAuthority(t, "another operator"), computeHost, x509.ExtKeyUsageClientAuth},
		"of one of the same name": {newAuthority(t, "the operator"), computeHost, x509.ExtKeyUsageClientAuth},
		"of another host":         {h.authority, gpuHost, x509.ExtKeyUsageClientAuth},
		"of a GPU host":           {h.authority, computeHost, x509.ExtKeyUsageServerAuth},
	} {
		made, _ := shape.by.issue(h.folder+"/other", shape.host, shape.use)
		if h.shows(made) == "" {
			t.Errorf("a certificate %s: not refused", what)
		}
	}
	if why := h.shows(h.compute); why != "" {
		t.Errorf("its own: %s", why)
	}
}

func TestRevokedCertificatesAreRefusedAndCutWhenTheListIsRead(t *testing.T) {
	later := time.Now().Add(time.Hour)
	for at, name := range []string{"of the compute host, at the gateway", "of the GPU host, at the doorman"} {
		h := newHouse(t)
		reader := []*pki{h.gpu, h.compute}[at]
		h.authority.revoke(reader.crl, later)
		h.must(reader.load())
		h.admits("an empty list " + name)
		h.must(exchangeByte(h.dial()))
		resumes := h.gateway.session.carried()
		h.authority.revoke(reader.crl, later, h.serials[at])
		h.must(reader.load())
		eventually(t, "the link is cut", func() bool {
			h.gateway.session.mu.Lock()
			defer h.gateway.session.mu.Unlock()
			return h.gateway.session.link == nil
		})
		h.refuses("revoked "+name, guestCID, testLease)
		if h.gateway.session.carried() != resumes {
			t.Error("a revoked certificate carried a link")
		}
		h.authority.revoke(reader.crl, time.Now().Add(-time.Minute))
		h.must(reader.load())
		h.refuses("a list that has ended "+name, guestCID, testLease)
		newAuthority(t, "another operator").revoke(reader.crl, later)
		if reader.load() == nil {
			t.Error("a list by another operator was taken")
		}
		h.authority.revoke(reader.crl, later)
		h.must(reader.load())
		h.admits("a new list " + name)
	}
}

func TestCertificatesThatAreHandedOverCount(t *testing.T) {
	h := newHouse(t)
	read := func(file string) string {
		text, err := os.ReadFile(file)
		h.must(err)
		return string(text)
	}
	g, err := newGateway(&pki{}, testLease, h.gateway.ports, h.gateway.serving)
	h.must(err)
	g.listener = listenLocal(t)
	t.Cleanup(g.session.end)
	orders, in := io.Pipe()
	out, answers := io.Pipe()
	over := make(chan error, 1)
	go func() { over <- g.obey(orders, answers) }()
	lines := bufio.NewScanner(out)
	ask := func(given map[string]any) map[string]any {
		text, err := json.Marshal(given)
		h.must(err)
		_, err = in.Write(append(text, '\n'))
		h.must(err)
		if !lines.Scan() {
			t.Fatal(lines.Err())
		}
		var found map[string]any
		h.must(json.Unmarshal(lines.Bytes(), &found))
		return found
	}
	files := map[string]any{"ca": read(h.gpu.ca), "certificate": read(h.gpu.certificate), "key": read(h.gpu.key), "crl": nil}
	said := ask(map[string]any{"epoch": 1, "client": computeHost, "pki": files})
	if said["epoch"] != 1.0 || said["trouble"] != nil {
		t.Fatalf("%v", said)
	}
	h.known[0].Address = g.listener.Addr().String()
	h.write()
	h.admits("certificates that were handed over")
	if said := ask(map[string]any{"pki": map[string]any{"ca": "x"}}); said["trouble"] == nil {
		t.Error("no trouble with certificates that are none")
	}
	h.admits("those before ones that are none")
	h.authority.revoke(h.gpu.crl, time.Now().Add(time.Hour), h.serials[0])
	files["crl"] = read(h.gpu.crl)
	ask(map[string]any{"pki": files})
	h.refuses("a list that was handed over later", guestCID, testLease)
	in.Close()
	h.must(<-over)
}

func TestTermsThatComeAgainAfterALinkBrokeEndNoGateway(t *testing.T) {
	h := newHouse(t)
	h.must(exchangeByte(h.dial()))
	h.gateway.mu.Lock()
	h.gateway.carries.Close()
	h.gateway.mu.Unlock()
	for _, mbps := range []uint64{0, 5, 7} {
		h.must(h.gateway.learn(terms{Epoch: 1, Client: computeHost, MBps: mbps}))
	}
	h.admits("after all that")
}

func TestTheLinkDiesWithTheProcessOfTheGuest(t *testing.T) {
	h := newHouse(t)
	machine := exec.Command("sleep", "60")
	h.must(machine.Start())
	defer func() { _ = machine.Process.Kill() }()
	started, _, err := processStat(machine.Process.Pid)
	h.must(err)
	h.known[0].PID, h.known[0].Started = machine.Process.Pid, started+1
	h.write()
	h.refuses("another process of that number", guestCID, testLease)
	h.known[0].Started = started
	h.write()
	h.must(exchangeByte(h.dial()))
	h.must(machine.Process.Kill())
	eventually(t, "the link is cut", func() bool {
		h.gateway.session.mu.Lock()
		defer h.gateway.session.mu.Unlock()
		return h.gateway.session.link == nil
	})
	_ = machine.Wait() // killed
	h.refuses("a guest that has ended", guestCID, testLease)
}

func TestALeaseIsSentNoFasterThanPromised(t *testing.T) {
	h := newHouse(t)
	h.known[0].MBps = 20
	h.write()
	conn := h.dial()
	h.must(exchangeByte(conn))
	begun := time.Now()
	h.must(exchange(conn, 6, 8*bytesPerMB))
	// What the kernel sends before it begins to pace is little; half of the promised time shows that it paces.
	if took := time.Since(begun); took < 200*time.Millisecond {
		t.Errorf("8 MB at 20 MB/s took %v", took)
	}
	h.known[0].MBps = 0
	h.write()
	h.doorman.look()
	h.must(exchangeByte(h.dial()))
}

func TestGarbageIsCutAndHoldsNoOther(t *testing.T) {
	h := newHouse(t)
	conn := h.dial()
	h.must(exchangeByte(conn))
	for n := int64(0); n < 50; n++ {
		p, err := reach(h.where(guestCID))
		h.must(err)
		_, _ = p.Write(noise(n, 500))
		p.Close()
		direct, err := net.Dial("tcp", h.known[0].Address)
		h.must(err)
		_, _ = direct.Write(noise(n, 500))
		direct.Close()
	}
	h.must(exchangeByte(conn))
	h.admits("after the garbage")
}

// idle opens connections to the gateway from an address, which say nothing.
func (h *house) idle(from string, count int) {
	for n := 0; n < count; n++ {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := dialer.Dial("tcp", h.gateway.listener.Addr().String())
		h.must(err)
		h.t.Cleanup(func() { conn.Close() })
	}
}

func TestIdleConnectionsHoldOffNoDoorman(t *testing.T) {
	h := newHouse(t)
	for _, from := range []string{"127.0.0.2", "127.0.0.1"} { // another host's, and the doorman's own
		h.idle(from, 3*mostHandshakes)
		begun := time.Now()
		h.admits("idle connections from " + from)
		if took := time.Since(begun); took > handshakeLimit/2 {
			t.Fatalf("from %s: admitted after %v", from, took)
		}
	}
}

func TestTheAddressFromWhichMostWaitLosesTheOneThatCameFirst(t *testing.T) {
	listener := listenLocal(t)
	dial := func(from string) net.Conn {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		theirs, err := dialer.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { theirs.Close() })
		ours, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ours.Close() })
		return ours
	}
	p := &porch{}
	other := dial("127.0.0.2")
	p.enter(other)
	var all []net.Conn
	for n := 0; n < 2*mostHandshakes; n++ {
		all = append(all, dial("127.0.0.1"))
		p.enter(all[n])
	}
	if len(p.waits) != mostHandshakes || p.waits[0] != other {
		t.Fatalf("%d wait, the first from %v", len(p.waits), p.waits[0].RemoteAddr())
	}
	if all[0].SetDeadline(time.Now()) == nil {
		t.Fatal("the first of the address from which most wait is open")
	}
	if err := all[len(all)-1].SetDeadline(time.Now()); err != nil {
		t.Fatalf("the last one is cut: %v", err)
	}
	p.leave(other)
	p.leave(other)
	if len(p.waits) != mostHandshakes-1 {
		t.Fatalf("%d wait", len(p.waits))
	}
}

func TestNothingIsLeftOfManyLinks(t *testing.T) {
	h := newHouse(t)
	for n := 0; n < 20; n++ {
		h.admits("one of many")
	}
	eventually(t, "the doorman has forgotten all", func() bool {
		h.doorman.mu.Lock()
		defer h.doorman.mu.Unlock()
		return len(h.doorman.relays) == 0 && len(h.doorman.guests) == 0
	})
	for _, each := range []*pki{h.compute, h.gpu} {
		each := each
		eventually(t, "its certificates' connections are forgotten", func() bool {
			each.mu.Lock()
			defer each.mu.Unlock()
			return len(each.live) == 0
		})
	}
}

func TestAGuestFollowsWhatIsOffered(t *testing.T) {
	h := newHouse(t)
	p, err := knock(h.where(guestCID), "")
	h.must(err)
	defer p.Close()
	over := make(chan error, 1)
	go func() { over <- h.guest.follow(p) }()
	var conn net.Conn
	eventually(t, "the port is open", func() bool {
		conn, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", h.port))
		return err == nil
	})
	h.must(exchangeByte(conn))
	h.known[0].Environment = map[string]string{"POCL_DEVICES": "remote", "POCL_REMOTE0_PARAMETERS": "127.0.0.1:1"}
	h.write()
	eventually(t, "the environment is another one", func() bool {
		text, err := os.ReadFile(h.folder + "/env")
		return err == nil && strings.Contains(string(text), "POCL_REMOTE0_PARAMETERS=127.0.0.1:1\n")
	})
	h.must(exchangeByte(conn)) // a lease more of the guest changes the environment, and cuts no stream
	h.known = nil
	h.write()
	if !resetBy(conn) {
		t.Error("the stream of a lease that is gone goes on")
	}
	eventually(t, "the port is closed", func() bool {
		other, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", h.port))
		if err == nil {
			other.Close()
		}
		return err != nil
	})
	p.Close()
	<-over
}

func TestAnOfferThatCannotBeIsRefused(t *testing.T) {
	folder := t.TempDir()
	for name, each := range map[string]offer{
		"no lease":          {Port: 1024, Ports: 1},
		"no port":           {Lease: testLease, Port: 1024},
		"ports beyond all":  {Lease: testLease, Port: 65535, Ports: 2},
		"a line in a value": {Lease: testLease, Port: freePort(t), Ports: 1, Environment: map[string]string{"A": "b\nc"}},
		"a command":         {Lease: testLease, Port: freePort(t), Ports: 1, Environment: map[string]string{"A": "$(b)"}},
		"a name of a shell": {Lease: testLease, Port: freePort(t), Ports: 1, Environment: map[string]string{"a b": "c"}},
	} {
		g := &guestDaemon{"unix:" + folder + "/none#7", folder + "/env", map[string]*guestLease{}}
		if g.obey([]offer{each}) == nil {
			t.Errorf("%s: not refused", name)
		}
		_ = g.obey(nil)
	}
}

// The test program again, as a server of its own process: an echo that prints its port.
func TestMain(m *testing.M) {
	if os.Getenv("LINK_ECHO") == "" {
		os.Exit(m.Run())
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		os.Exit(1)
	}
	fmt.Println(portOf(listener))
	for {
		conn, err := listener.Accept()
		if err != nil {
			os.Exit(1)
		}
		go echo(conn.(*net.TCPConn))
	}
}

// The gateway's whole process with a server that is killed: the program sees a reset, never an end or stale bytes.
func TestAKilledServerIsAResetInTheGuest(t *testing.T) {
	h := newHouse(t)
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), "LINK_ECHO=1")
	out, err := server.StdoutPipe()
	h.must(err)
	h.must(server.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	h.must(err)
	reader, lines := io.Pipe()
	answers, writer := io.Pipe()
	h.gateway.listener.Close()
	listener := listenLocal(t)
	address := listener.Addr().String()
	listener.Close()
	stdin, stdout := os.Stdin, os.Stdout
	defer func() { os.Stdin, os.Stdout = stdin, stdout }()
	os.Stdin, os.Stdout = pipeFile(t, reader), fileOf(t, writer)
	ended := make(chan error, 1)
	go func() {
		ended <- runGateway([]string{
			"-lease", testLease, "-listen", address, "-ports", strings.TrimSpace(line),
			"-server", fmt.Sprint(server.Process.Pid), "-ca", h.gpu.ca, "-certificate", h.gpu.certificate,
			"-key", h.gpu.key, "-crl", h.gpu.crl,
		})
	}()
	_, err = fmt.Fprintf(lines, "{\"epoch\": 1, \"client\": %q}\n", computeHost)
	h.must(err)
	replies := bufio.NewScanner(answers)
	if !replies.Scan() || !strings.Contains(replies.Text(), address) {
		t.Fatalf("answer %q", replies.Text())
	}
	h.known[0].Address = address
	h.write()
	conn := h.dial()
	h.must(exchangeByte(conn))
	h.must(server.Process.Kill())
	if !resetBy(conn) {
		t.Error("no reset")
	}
	_ = server.Wait() // killed
	if conn, err := h.dialed(); err == nil && exchangeByte(conn) == nil {
		t.Error("a server that is gone answers")
	}
	_, err = io.WriteString(lines, "{}\n")
	h.must(err)
	if !replies.Scan() || !strings.Contains(replies.Text(), `"ended":true`) {
		t.Errorf("answer %q", replies.Text())
	}
	lines.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// pipeFile and fileOf join a pipe of this process to a file, as a supervisor's end is one.
func pipeFile(t testing.TB, from io.Reader) *os.File {
	mine, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = io.Copy(theirs, from)
		theirs.Close()
	}()
	return mine
}

func fileOf(t testing.TB, to io.Writer) *os.File {
	theirs, mine, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(to, theirs) }()
	return mine
}

// Without a guest of its own a machine has no vsock that reaches anything; that the kernel takes the addresses is seen.
func TestVsockListensWhereTheKernelHasIt(t *testing.T) {
	if _, err := os.Stat("/dev/vsock"); err != nil {
		t.Skip("this kernel has no vsock")
	}
	made, err := listen("vsock:54321")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error)
	go func() {
		_, _, err := made.take()
		over <- err
	}()
	time.Sleep(10 * time.Millisecond)
	made.Close()
	if <-over == nil {
		t.Error("a closed listener took a connection")
	}
	if _, err := listen("tcp:1"); err == nil {
		t.Error("a guest's daemon would listen elsewhere")
	}
}
