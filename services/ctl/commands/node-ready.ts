import { PLAIN_MEMBER, podwireMemberOf } from '../clients/network-config.js';
import { text } from '../command-line/forms.js';
import type { Option, Verb } from '../command-line/verb.js';
import { DONE, FOUND_WRONG } from '../exit-codes.js';
import { sentence } from '../output/report.js';

const USUAL_CONFIG = '/etc/cni/net.d/10-podwire.conflist';

const CONFIG: Option<string> = {
  name: '--config',
  form: text('FILE'),
  about: `the network configuration that the runtime has, as its families and pools count (${USUAL_CONFIG})`,
};

export const nodeReady: Verb = {
  name: 'node ready',
  about: 'whether pods can be added on this node, as the container runtime is told it, and why not',
  details:
    "It is CNI's STATUS in its strict reading, which names every reason why an ADD would fail. The runtime itself is answered\n" +
    'less strictly, so that healthy pods are not evicted: without PODWIRE_PLUGIN_STRICT_STATUS a node that was ready once since\n' +
    'its boot is NetworkPluginNotReady only while its dataplane cannot wire pods. What the dataplane knows of the node is told by\n' +
    '"podwirectl node status". Exit code 4: no pod can be added, or the node cannot keep account of what it deletes.',
  options: [CONFIG],
  run: async (input, { plugin }) => {
    const file = input.get(CONFIG) ?? USUAL_CONFIG;
    const configuration = await podwireMemberOf(file);
    // An installer writes it last, once STATUS is ready: what STATUS says is then the reason behind the missing file.
    const member = configuration ?? PLAIN_MEMBER;
    const { reason: told } = await plugin.strictStatus(member);
    const reason = configuration === undefined ? withoutConfiguration(file, told) : told;
    const isReady = configuration !== undefined && (told === null || (await plugin.status(member)).reason === null);
    return {
      sections: [sentence(textOf(isReady, reason))],
      data: () => ({ ready: isReady, reason }),
      exitCode: reason === null ? DONE : FOUND_WRONG,
    };
  },
};

function textOf(isReady: boolean, reason: string | null): string {
  if (reason === null) return 'Ready: pods can be added.';
  return isReady ? `Ready for the pods that it has, but none can be added: ${reason}` : `Not ready: ${reason}`;
}

function withoutConfiguration(file: string, told: string | null): string {
  const missing = `there is no network configuration ${file}, and a runtime without one adds no pod`;
  const remedy = '"podwire install" puts it there; one that has another name is told with --config';
  return told === null ? `${missing}: ${remedy}` : `${told}; and ${missing}: ${remedy}, once the former is mended`;
}
