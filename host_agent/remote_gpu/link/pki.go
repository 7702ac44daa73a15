// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A pki is the operator's: files that are read again on SIGHUP, or what they hold, handed over by who may read them.
// Nothing is signed here.
type pki struct {
	ca, certificate, key, crl string
	now                       atomic.Value // credentials
	mu                        sync.Mutex
	live                      map[*sealed]judge
}

// texts are what the files hold, in PEM.
type texts struct {
	CA          string  `json:"ca"`
	Certificate string  `json:"certificate"`
	Key         string  `json:"key"`
	CRL         *string `json:"crl"` // nil: there is no such file
}

// credentials are what counts now.
type credentials struct {
	roots   *x509.CertPool
	own     tls.Certificate
	hasList bool
	lists   []*x509.RevocationList
}

// A judge says why a peer is not one for this end; nil: it is.
type judge func(tls.ConnectionState) error

func (p *pki) flags(set *flag.FlagSet, name string) {
	set.StringVar(&p.ca, "ca", "/etc/pki/CA/cacert.pem", "certificates of those who sign hosts' certificates")
	set.StringVar(&p.certificate, "certificate", "/etc/pki/libvirt/"+name+"cert.pem", "of this host, with its chain")
	set.StringVar(&p.key, "key", "/etc/pki/libvirt/private/"+name+"key.pem", "of that certificate")
	set.StringVar(&p.crl, "crl", "/etc/pki/CA/cacrl.pem", "lists of revoked certificates; not used where the file is not there")
}

// load reads all files. What was read before stays where one of them cannot be used.
func (p *pki) load() error {
	var found texts
	for _, each := range []struct {
		file string
		text *string
	}{{p.ca, &found.CA}, {p.certificate, &found.Certificate}, {p.key, &found.Key}} {
		held, err := os.ReadFile(each.file)
		if err != nil {
			return err
		}
		*each.text = string(held)
	}
	list, err := os.ReadFile(p.crl)
	if err == nil {
		text := string(list)
		found.CRL = &text
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return p.take(found)
}

// take has texts count from now on, for connections that there are, too. What counted before stays where one of them
// cannot be used.
func (p *pki) take(given texts) error {
	found, err := given.read()
	if err != nil {
		return err
	}
	p.now.Store(found)
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn, judged := range p.live {
		if err := found.judge(conn.ConnectionState(), judged); err != nil {
			log("cut: %v", err)
			conn.Close()
		}
	}
	return nil
}

func (given texts) read() (*credentials, error) {
	own, err := tls.X509KeyPair([]byte(given.Certificate), []byte(given.Key))
	if err != nil {
		return nil, fmt.Errorf("the certificate or its key: %w", err)
	}
	found := &credentials{roots: x509.NewCertPool(), own: own}
	var authorities []*x509.Certificate
	for _, each := range blocks([]byte(given.CA), "CERTIFICATE") {
		one, err := x509.ParseCertificate(each)
		if err != nil {
			return nil, fmt.Errorf("the authorities: %w", err)
		}
		authorities = append(authorities, one)
		found.roots.AddCert(one)
	}
	if authorities == nil {
		return nil, errors.New("the authorities: no certificate")
	}
	if given.CRL == nil {
		return found, nil
	}
	found.hasList = true
	for _, each := range blocks([]byte(*given.CRL), "X509 CRL") {
		list, err := x509.ParseRevocationList(each)
		if err != nil {
			return nil, fmt.Errorf("the lists of revoked certificates: %w", err)
		}
		if err := signed(list, authorities); err != nil {
			return nil, err
		}
		found.lists = append(found.lists, list)
	}
	return found, nil
}

func blocks(text []byte, kind string) (found [][]byte) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == kind {
			found = append(found, block.Bytes)
		}
	}
	return found
}

func signed(list *x509.RevocationList, authorities []*x509.Certificate) error {
	for _, each := range authorities {
		if bytes.Equal(each.RawSubject, list.RawIssuer) && list.CheckSignatureFrom(each) == nil {
			return nil
		}
	}
	return fmt.Errorf("the list of %s is signed by none of the authorities", list.Issuer)
}

// judge looks at what TLS has not looked at: lists of revoked certificates, and what this end expects of a peer.
func (c *credentials) judge(state tls.ConnectionState, judged judge) error {
	if len(state.VerifiedChains) == 0 {
		return errors.New("no certificate was verified")
	}
	var err error
	for _, chain := range state.VerifiedChains {
		if err = c.revoked(chain); err == nil {
			return judged(state)
		}
	}
	return err
}

func (c *credentials) revoked(chain []*x509.Certificate) error {
	for at, each := range chain[:len(chain)-1] {
		listed := false
		for _, list := range c.lists {
			if !bytes.Equal(list.RawIssuer, each.RawIssuer) {
				continue
			}
			listed = true
			if time.Now().After(list.NextUpdate) {
				return fmt.Errorf("the list of revoked certificates of %s ended at %v", list.Issuer, list.NextUpdate)
			}
			for _, one := range list.RevokedCertificates {
				if one.SerialNumber.Cmp(each.SerialNumber) == 0 {
					return fmt.Errorf("the certificate of %s is revoked", each.Subject)
				}
			}
		}
		if at == 0 && c.hasList && !listed {
			return fmt.Errorf("no list of revoked certificates is by %s", each.Issuer)
		}
	}
	return nil
}

// named says whether a certificate is for that use, by its own word, and names the host. A certificate without uses
// would be for all of them, and one with an asterisk for all hosts: neither is enough.
func named(state tls.ConnectionState, host string, use x509.ExtKeyUsage) error {
	leaf := state.PeerCertificates[0]
	for _, each := range leaf.ExtKeyUsage {
		if each == use {
			for _, name := range leaf.DNSNames {
				if host != "" && strings.EqualFold(name, host) {
					return nil
				}
			}
			return fmt.Errorf("a certificate for %v, not for %q", leaf.DNSNames, host)
		}
	}
	return fmt.Errorf("the certificate of %s is for another use", leaf.Subject)
}

func (p *pki) config() (*tls.Config, *credentials) {
	found := p.now.Load().(*credentials)
	return &tls.Config{
		Certificates:           []tls.Certificate{found.own},
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true,
		// Each link is for good: no first megabyte in small records.
		DynamicRecordSizingDisabled: true,
	}, found
}

// client dials as a compute host: the peer is the GPU host of that name.
func (p *pki) client(plain net.Conn, host string) (*sealed, error) {
	config, found := p.config()
	judged := func(state tls.ConnectionState) error { return named(state, host, x509.ExtKeyUsageServerAuth) }
	config.RootCAs, config.ServerName = found.roots, host
	config.VerifyConnection = func(state tls.ConnectionState) error { return found.judge(state, judged) }
	under := gather(plain)
	return p.shake(&sealed{tls.Client(under, config), under}, judged)
}

// server takes a compute host's connection.
func (p *pki) server(plain net.Conn, judged judge) (*sealed, error) {
	config, found := p.config()
	config.ClientCAs, config.ClientAuth = found.roots, tls.RequireAndVerifyClientCert
	config.VerifyConnection = func(state tls.ConnectionState) error { return found.judge(state, judged) }
	under := gather(plain)
	return p.shake(&sealed{tls.Server(under, config), under}, judged)
}

func (p *pki) shake(conn *sealed, judged judge) (*sealed, error) {
	if err := conn.Handshake(); err != nil {
		conn.Close()
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live == nil {
		p.live = map[*sealed]judge{}
	}
	p.live[conn] = judged
	// Files that were read during the handshake have not judged this connection.
	if err := p.now.Load().(*credentials).judge(conn.ConnectionState(), judged); err != nil {
		delete(p.live, conn)
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// forget closes a connection for good.
func (p *pki) forget(conn *sealed) {
	p.mu.Lock()
	delete(p.live, conn)
	p.mu.Unlock()
	conn.Close()
}
