// CoreDNS, which answers the names of Services to pods.
import { COREDNS_IMAGE } from '../e2e-images.mjs';
import { SERVICE_OF_DNS } from './network.mjs';
import { until } from './wait.mjs';

const NAMESPACE = 'kube-system';
/** Kubernetes' own tests look for pods and Service by these. */
const NAME = 'kube-dns';
const LABELS = { 'k8s-app': NAME };
const ACCOUNT = 'coredns';

const COREFILE = `.:53 {
  errors
  health
  ready
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    pods insecure
    fallthrough in-addr.arpa ip6.arpa
  }
  cache 30
}
`;

const READS = [
  { apiGroups: [''], resources: ['services', 'pods', 'namespaces'], verbs: ['list', 'watch'] },
  { apiGroups: ['discovery.k8s.io'], resources: ['endpointslices'], verbs: ['list', 'watch'] },
];

function objects(families) {
  const subjects = [{ kind: 'ServiceAccount', name: ACCOUNT, namespace: NAMESPACE }];
  const roleRef = { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: ACCOUNT };
  const container = {
    name: 'coredns',
    image: COREDNS_IMAGE,
    imagePullPolicy: 'Never',
    args: ['-conf', '/etc/coredns/Corefile'],
    volumeMounts: [{ name: 'config', mountPath: '/etc/coredns' }],
    readinessProbe: { httpGet: { path: '/ready', port: 8181 }, periodSeconds: 2 },
  };
  const pod = {
    serviceAccountName: ACCOUNT,
    dnsPolicy: 'Default',
    terminationGracePeriodSeconds: 2,
    containers: [container],
    volumes: [{ name: 'config', configMap: { name: ACCOUNT } }],
  };
  const clusterIPs = families.pick(SERVICE_OF_DNS);
  const ports = ['UDP', 'TCP'].map((protocol) => ({ name: `dns-${protocol.toLowerCase()}`, port: 53, protocol }));
  const named = (apiVersion, kind, name, rest) => ({
    apiVersion,
    kind,
    metadata: { namespace: NAMESPACE, name },
    ...rest,
  });
  return [
    named('v1', 'ServiceAccount', ACCOUNT),
    named('rbac.authorization.k8s.io/v1', 'ClusterRole', ACCOUNT, { rules: READS }),
    named('rbac.authorization.k8s.io/v1', 'ClusterRoleBinding', ACCOUNT, { roleRef, subjects }),
    named('v1', 'ConfigMap', ACCOUNT, { data: { Corefile: COREFILE } }),
    named('apps/v1', 'Deployment', ACCOUNT, {
      spec: { replicas: 2, selector: { matchLabels: LABELS }, template: { metadata: { labels: LABELS }, spec: pod } },
    }),
    named('v1', 'Service', NAME, {
      spec: { selector: LABELS, clusterIP: clusterIPs[0], clusterIPs, ipFamilyPolicy: 'PreferDualStack', ports },
    }),
  ];
}

/** Runs CoreDNS while `action` runs. */
export async function withCoreDns({ api, controlPlane, families }, action) {
  const list = { apiVersion: 'v1', kind: 'List', items: objects(families) };
  const pods = () => api.list('Pod', NAMESPACE, `k8s-app=${NAME}`);
  const isReady = async () => {
    const { status } = await api.get('Deployment', NAMESPACE, ACCOUNT);
    return status.readyReplicas === 2;
  };
  controlPlane.kubectl(['apply', '-f', '-'], JSON.stringify(list));
  await until('CoreDNS', isReady, 60);
  try {
    return await action();
  } finally {
    controlPlane.kubectl(['delete', '-f', '-'], JSON.stringify(list));
    await until('CoreDNS to go', async () => (await pods()).length === 0, 60);
  }
}
