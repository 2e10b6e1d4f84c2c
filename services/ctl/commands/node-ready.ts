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
    "It is CNI's STATUS: what makes a node NetworkPluginNotReady. What the dataplane knows of the node is told by\n" +
    '"podwirectl node status". Exit code 4: no pod can be added, or the node cannot keep account of what it deletes.',
  options: [CONFIG],
  run: async (input, { plugin }) => {
    const file = input.get(CONFIG) ?? USUAL_CONFIG;
    const configuration = await podwireMemberOf(file);
    // An installer writes it last, once STATUS is ready: what STATUS says is then the reason behind the missing file.
    const { reason: told } = await plugin.status(configuration ?? PLAIN_MEMBER);
    const reason = configuration === undefined ? withoutConfiguration(file, told) : told;
    const isReady = reason === null;
    return {
      sections: [sentence(isReady ? 'Ready: pods can be added.' : `Not ready: ${reason}`)],
      data: () => ({ ready: isReady, reason }),
      exitCode: isReady ? DONE : FOUND_WRONG,
    };
  },
};

function withoutConfiguration(file: string, told: string | null): string {
  const missing = `there is no network configuration ${file}, and a runtime without one adds no pod`;
  const remedy = '"podwire install" puts it there; one that has another name is told with --config';
  return told === null ? `${missing}: ${remedy}` : `${told}; and ${missing}: ${remedy}, once the former is mended`;
}
