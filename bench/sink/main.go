// Sink stands where an API server would: TLS, HTTP/2, objects in memory, answers at once.
//
// A fleet's own ceiling cannot be seen on a real API server, which needs thirty times the CPU of
// what asks it. The sink keeps what is created, gives versions, applies merge patches, watches by
// name or label-free selectors of fields, and knows nothing else of Kubernetes: no validation, no
// authentication, no controllers. It serves measurements only, on loopback, and ends with stdin.
package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	mathrand "math/rand"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

type object = map[string]any

// A collection holds the objects of one resource, whatever their namespace.
type collection struct {
	mu       sync.Mutex
	objects  map[string][]byte // by path
	watchers map[*watcher]struct{}
}

type watcher struct {
	prefix string   // of the paths that it sees: a namespace
	name   string   // metadata.name, or "" for all
	node   string   // spec.nodeName, or "" for all
	events [][]byte // that it was not sent yet
	more   chan struct{}
}

type server struct {
	mu          sync.Mutex
	collections map[string]*collection
	version     atomic.Int64
	renewals    atomic.Int64
	requests    atomic.Int64
	watches     atomic.Int64
	bookmark    time.Duration
}

var versionKey, uidKey = []byte(`"resourceVersion":"`), []byte(`"uid":"`)

func main() {
	kubeconfig := flag.String("kubeconfig", "sink.kubeconfig", "where to write how to reach it")
	bookmark := flag.Duration("bookmark", time.Minute, "between two bookmarks of a watch")
	flag.Parse()
	certificate, authority, err := certificates()
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	s := &server{collections: map[string]*collection{}, bookmark: *bookmark}
	s.version.Store(1)
	for _, name := range []string{"default", "kube-system", "kube-node-lease", "kube-public"} {
		body := `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"` + name + `","uid":"` + uid() +
			`","resourceVersion":"1"},"status":{"phase":"Active"}}`
		s.collection("api/v1/namespaces").objects[name] = []byte(body)
	}
	if err := writeKubeconfig(*kubeconfig, listener.Addr().String(), authority); err != nil {
		log.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetHTTP1(true)
	web := &http.Server{
		Handler:   s,
		Protocols: protocols,
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: 250},
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2", "http/1.1"}},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	go func() { // whoever started it is gone
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println("ready")
	log.Fatal(web.ServeTLS(listener, "", ""))
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	switch {
	case r.URL.Path == "/version":
		answer(w, 200, []byte(`{"major":"1","minor":"36","gitVersion":"v1.36.3","platform":"linux/amd64"}`))
	case r.URL.Path == "/metrics":
		fmt.Fprintf(w, "sink_requests_total %d\nsink_renewals_total %d\nsink_watches %d\n",
			s.requests.Load(), s.renewals.Load(), s.watches.Load())
	case strings.HasSuffix(r.URL.Path, "accessreviews"):
		s.review(w, r, object{"allowed": true})
	case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
		s.review(w, r, object{"userInfo": whoAsks(r)})
	case strings.HasSuffix(r.URL.Path, "/token"):
		expires := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		s.review(w, r, object{"token": "sink", "expirationTimestamp": expires})
	default:
		s.serveObjects(w, r)
	}
}

// whoAsks believes everybody.
func whoAsks(r *http.Request) object {
	name := r.Header.Get("Impersonate-User")
	if name == "" {
		return object{"username": "sink", "groups": []string{"system:masters", "system:authenticated"}}
	}
	groups := r.Header.Values("Impersonate-Group")
	if len(groups) == 0 && strings.HasPrefix(name, "system:node:") {
		groups = []string{"system:nodes"}
	}
	return object{"username": name, "groups": append(groups, "system:authenticated")}
}

// review answers what is asked by a POST and kept nowhere.
func (s *server) review(w http.ResponseWriter, r *http.Request, status object) {
	asked := object{}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		fail(w, 400, err.Error())
		return
	}
	asked["status"] = status
	send(w, 201, asked)
}

// place says what a path is of: the collection, and the namespace, name, subresource if any.
func place(path string) (resource, prefix, name, subresource string, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	start := 0
	switch {
	case len(parts) > 2 && parts[0] == "api":
		start = 2
	case len(parts) > 3 && parts[0] == "apis":
		start = 3
	default:
		return
	}
	group := strings.Join(parts[:start], "/")
	rest := parts[start:]
	if rest[0] == "namespaces" && len(rest) > 2 {
		prefix = rest[1] + "/"
		rest = rest[2:]
	}
	resource, ok = group+"/"+rest[0], true
	if len(rest) > 1 {
		name = rest[1]
	}
	if len(rest) > 2 {
		subresource = rest[2]
	}
	return
}

func (s *server) collection(resource string) *collection {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.collections[resource]
	if c == nil {
		c = &collection{objects: map[string][]byte{}, watchers: map[*watcher]struct{}{}}
		s.collections[resource] = c
	}
	return c
}

func (s *server) serveObjects(w http.ResponseWriter, r *http.Request) {
	resource, prefix, name, subresource, ok := place(r.URL.Path)
	if !ok {
		fail(w, 404, "NotFound")
		return
	}
	c := s.collection(resource)
	key := prefix + name
	switch r.Method {
	case http.MethodGet:
		if name != "" {
			c.mu.Lock()
			found := c.objects[key]
			c.mu.Unlock()
			if found == nil {
				fail(w, 404, "NotFound")
				return
			}
			answer(w, 200, found)
		} else if query := r.URL.Query(); query.Get("watch") == "true" || query.Get("watch") == "1" {
			s.watch(w, r, c, resource, prefix)
		} else {
			s.list(w, r, c, resource, prefix)
		}
	case http.MethodPost:
		s.create(w, r, c, resource, prefix, name, subresource)
	case http.MethodPut:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.renewals.Add(1)
		s.keep(w, c, key, body, "MODIFIED", 200)
	case http.MethodPatch:
		s.patch(w, r, c, key)
	case http.MethodDelete:
		c.mu.Lock()
		found := c.objects[key]
		delete(c.objects, key)
		c.mu.Unlock()
		if found == nil {
			fail(w, 404, "NotFound")
			return
		}
		found = versioned(found, s.version.Add(1))
		c.tell("DELETED", key, found)
		answer(w, 200, found)
	default:
		fail(w, 405, "MethodNotAllowed")
	}
}

func (s *server) create(w http.ResponseWriter, r *http.Request, c *collection, resource, prefix, name, subresource string) {
	made := object{}
	if err := json.NewDecoder(r.Body).Decode(&made); err != nil {
		fail(w, 400, err.Error())
		return
	}
	if subresource == "binding" || name != "" {
		fail(w, 404, "NotFound")
		return
	}
	meta, _ := made["metadata"].(object)
	if meta == nil {
		fail(w, 422, "Invalid")
		return
	}
	if meta["name"] == nil {
		meta["name"] = fmt.Sprint(meta["generateName"], strconv.FormatInt(s.version.Load(), 36))
	}
	if prefix != "" {
		meta["namespace"] = strings.TrimSuffix(prefix, "/")
	}
	meta["uid"] = uid()
	meta["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	meta["resourceVersion"] = "0"
	key := prefix + meta["name"].(string)
	c.mu.Lock()
	exists := c.objects[key] != nil
	c.mu.Unlock()
	if exists {
		fail(w, 409, "AlreadyExists")
		return
	}
	body, _ := json.Marshal(made)
	s.keep(w, c, key, body, "ADDED", 201)
}

// keep stores bytes under a new version, tells the watches, and answers with them.
func (s *server) keep(w http.ResponseWriter, c *collection, key string, body []byte, event string, code int) {
	c.mu.Lock()
	held := c.objects[key]
	if event == "MODIFIED" && held == nil {
		c.mu.Unlock()
		fail(w, 404, "NotFound")
		return
	}
	if !bytes.Contains(body, uidKey) {
		body = withIdentity(body, held)
	}
	body = versioned(body, s.version.Add(1))
	c.objects[key] = body
	c.mu.Unlock()
	c.tell(event, key, body)
	answer(w, code, body)
}

func (s *server) patch(w http.ResponseWriter, r *http.Request, c *collection, key string) {
	change := object{}
	if err := json.NewDecoder(r.Body).Decode(&change); err != nil {
		fail(w, 400, err.Error())
		return
	}
	c.mu.Lock()
	found := c.objects[key]
	if found == nil {
		c.mu.Unlock()
		fail(w, 404, "NotFound")
		return
	}
	held := object{}
	_ = json.Unmarshal(found, &held)
	merge(held, change)
	held["metadata"].(object)["resourceVersion"] = strconv.FormatInt(s.version.Add(1), 10)
	body, _ := json.Marshal(held)
	c.objects[key] = body
	c.mu.Unlock()
	c.tell("MODIFIED", key, body)
	answer(w, 200, body)
}

// merge applies a strategic merge patch as far as kubelets need it: lists whose items have a
// "type" (conditions, addresses) or a "name" are merged by it, others replaced.
func merge(held, change object) {
	for key, value := range change {
		if strings.HasPrefix(key, "$") {
			continue
		}
		switch value := value.(type) {
		case nil:
			delete(held, key)
		case object:
			inner, ok := held[key].(object)
			if !ok {
				inner = object{}
				held[key] = inner
			}
			merge(inner, value)
		case []any:
			held[key] = mergeLists(held[key], value)
		default:
			held[key] = value
		}
	}
}

func mergeLists(held any, change []any) []any {
	list, _ := held.([]any)
	for _, item := range change {
		entry, ok := item.(object)
		if !ok {
			return change
		}
		by := "type"
		if entry[by] == nil {
			by = "name"
		}
		if entry[by] == nil {
			return change
		}
		at := -1
		for i, other := range list {
			if o, ok := other.(object); ok && o[by] == entry[by] {
				at = i
			}
		}
		if at < 0 {
			list = append(list, entry)
		} else {
			merge(list[at].(object), entry)
		}
	}
	return list
}

func (s *server) list(w http.ResponseWriter, r *http.Request, c *collection, resource, prefix string) {
	who := seen(r, prefix)
	out := bytes.NewBufferString(`{"kind":"` + kind(resource) + `List","apiVersion":"` + apiVersion(resource) +
		`","metadata":{"resourceVersion":"` + strconv.FormatInt(s.version.Load(), 10) + `"},"items":[`)
	first := true
	c.mu.Lock()
	for key, body := range c.objects {
		if who.sees(key, body) {
			if !first {
				out.WriteByte(',')
			}
			first = false
			out.Write(body)
		}
	}
	c.mu.Unlock()
	out.WriteString("]}")
	answer(w, 200, out.Bytes())
}

func (s *server) watch(w http.ResponseWriter, r *http.Request, c *collection, resource, prefix string) {
	query := r.URL.Query()
	who := seen(r, prefix)
	who.more = make(chan struct{}, 1)
	initial := [][]byte{}
	c.mu.Lock()
	if query.Get("sendInitialEvents") == "true" || query.Get("resourceVersion") == "" {
		for key, body := range c.objects {
			if who.sees(key, body) {
				initial = append(initial, event("ADDED", body))
			}
		}
	}
	c.watchers[who] = struct{}{}
	c.mu.Unlock()
	s.watches.Add(1)
	defer func() {
		s.watches.Add(-1)
		c.mu.Lock()
		delete(c.watchers, who)
		c.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	for _, each := range initial {
		_, _ = w.Write(each)
	}
	if query.Get("sendInitialEvents") == "true" {
		_, _ = w.Write(s.bookmarkOf(resource, true))
	}
	flusher := w.(http.Flusher)
	flusher.Flush()
	seconds, err := strconv.Atoi(query.Get("timeoutSeconds"))
	if err != nil {
		seconds = 1800
	}
	end := time.NewTimer(time.Duration(seconds) * time.Second)
	defer end.Stop()
	next := time.NewTimer(time.Duration(mathrand.Int63n(int64(s.bookmark)) + 1))
	defer next.Stop()
	for {
		select {
		case <-who.more:
			c.mu.Lock()
			events := who.events
			who.events = nil
			c.mu.Unlock()
			for _, each := range events {
				_, _ = w.Write(each)
			}
			flusher.Flush()
		case <-next.C:
			next.Reset(s.bookmark)
			_, _ = w.Write(s.bookmarkOf(resource, false))
			flusher.Flush()
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (s *server) bookmarkOf(resource string, ends bool) []byte {
	annotations := ""
	if ends {
		annotations = `,"annotations":{"k8s.io/initial-events-end":"true"}`
	}
	return []byte(`{"type":"BOOKMARK","object":{"kind":"` + kind(resource) + `","apiVersion":"` + apiVersion(resource) +
		`","metadata":{"resourceVersion":"` + strconv.FormatInt(s.version.Load(), 10) + `","creationTimestamp":null` +
		annotations + "}}}\n")
}

// tell hands an event to the watches that see the object.
func (c *collection) tell(kind, key string, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for who := range c.watchers {
		if who.sees(key, body) {
			who.events = append(who.events, event(kind, body))
			select {
			case who.more <- struct{}{}:
			default:
			}
		}
	}
}

func seen(r *http.Request, prefix string) *watcher {
	who := &watcher{prefix: prefix}
	for _, term := range strings.Split(r.URL.Query().Get("fieldSelector"), ",") {
		if value, ok := strings.CutPrefix(term, "metadata.name="); ok {
			who.name = value
		}
		if value, ok := strings.CutPrefix(term, "spec.nodeName="); ok {
			who.node = value
		}
	}
	return who
}

func (w *watcher) sees(key string, body []byte) bool {
	if !strings.HasPrefix(key, w.prefix) {
		return false
	}
	if w.name != "" && key[strings.LastIndexByte(key, '/')+1:] != w.name {
		return false
	}
	return w.node == "" || bytes.Contains(body, []byte(`"nodeName":"`+w.node+`"`))
}

func event(kind string, body []byte) []byte {
	out := make([]byte, 0, len(body)+40)
	out = append(out, `{"type":"`...)
	out = append(out, kind...)
	out = append(out, `","object":`...)
	out = append(out, body...)
	return append(out, '}', '\n')
}

// versioned returns the bytes with another resourceVersion; nothing else of them is read.
func versioned(body []byte, version int64) []byte {
	at := bytes.Index(body, versionKey)
	if at < 0 {
		held := object{}
		if json.Unmarshal(body, &held) != nil {
			return body
		}
		if meta, ok := held["metadata"].(object); ok {
			meta["resourceVersion"] = "0"
		}
		body, _ = json.Marshal(held)
		if at = bytes.Index(body, versionKey); at < 0 {
			return body
		}
	}
	at += len(versionKey)
	end := at + bytes.IndexByte(body[at:], '"')
	out := make([]byte, 0, len(body)+8)
	out = append(out, body[:at]...)
	out = strconv.AppendInt(out, version, 10)
	return append(out, body[end:]...)
}

// withIdentity gives an object that is replaced what only the server sets.
func withIdentity(body, held []byte) []byte {
	now, then := object{}, object{}
	if json.Unmarshal(body, &now) != nil || json.Unmarshal(held, &then) != nil {
		return body
	}
	meta, _ := now["metadata"].(object)
	before, _ := then["metadata"].(object)
	if meta == nil || before == nil {
		return body
	}
	meta["uid"], meta["creationTimestamp"] = before["uid"], before["creationTimestamp"]
	body, _ = json.Marshal(now)
	return body
}

func answer(w http.ResponseWriter, code int, body []byte) {
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

func send(w http.ResponseWriter, code int, value any) {
	body, _ := json.Marshal(value)
	answer(w, code, body)
}

func fail(w http.ResponseWriter, code int, reason string) {
	send(w, code, object{
		"kind": "Status", "apiVersion": "v1", "metadata": object{}, "status": "Failure",
		"code": code, "reason": reason, "message": reason,
	})
}

var kinds = map[string]string{
	"nodes": "Node", "pods": "Pod", "leases": "Lease", "services": "Service", "configmaps": "ConfigMap",
	"secrets": "Secret", "csinodes": "CSINode", "csidrivers": "CSIDriver", "runtimeclasses": "RuntimeClass",
	"namespaces": "Namespace", "events": "Event", "clustertrustbundles": "ClusterTrustBundle",
}

func kind(resource string) string {
	name := resource[strings.LastIndexByte(resource, '/')+1:]
	if known, ok := kinds[name]; ok {
		return known
	}
	return strings.ToUpper(name[:1]) + strings.TrimSuffix(name[1:], "s")
}

func apiVersion(resource string) string {
	group, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(resource, "apis/"), "api/"), " ")
	return group[:strings.LastIndexByte(group, '/')]
}

func uid() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func certificates() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "sink"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(48 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA:                  true,
		BasicConstraintsValid: true,
		DNSNames:              []string{"localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, authority, nil
}

func writeKubeconfig(path, address string, authority []byte) error {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: sink
clusters: [{name: sink, cluster: {server: "https://%s", certificate-authority-data: %s}}]
users: [{name: sink, user: {token: sink}}]
contexts: [{name: sink, context: {cluster: sink, user: sink}}]
`, address, base64.StdEncoding.EncodeToString(authority))
	return os.WriteFile(path, []byte(text), 0o600)
}
