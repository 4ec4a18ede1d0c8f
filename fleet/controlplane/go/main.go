// Command controlplane is etcd, kube-apiserver, kube-scheduler, kube-controller-manager and kubectl in
// one binary: they share most of their code, so one link is a quarter of the size and of the build.
//
// It is the component that its base name says (a symlink called "etcd" is etcd), else the one that
// its first argument names: `controlplane kube-scheduler --kubeconfig=...`.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var components = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { run(apiserver.NewAPIServerCommand) },
	"kube-scheduler":          func() { run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }) },
	"kube-controller-manager": func() { run(controllermanager.NewControllerManagerCommand) },
	"kubectl":                 runKubectl,
}

func main() {
	if component, ok := components[filepath.Base(os.Args[0])]; ok {
		component()
		return
	}
	if len(os.Args) > 1 {
		if component, ok := components[filepath.Base(os.Args[1])]; ok {
			os.Args = os.Args[1:]
			component()
			return
		}
	}
	names := []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"}
	fmt.Fprintf(os.Stderr, "usage: controlplane {%s} [flags]\n", strings.Join(names, "|"))
	os.Exit(2)
}

func run(command func() *cobra.Command) {
	os.Exit(cli.Run(command()))
}

// runKubectl does what k8s.io/kubernetes/cmd/kubectl does.
func runKubectl() {
	logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)) //nolint:errcheck // as upstream
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}
