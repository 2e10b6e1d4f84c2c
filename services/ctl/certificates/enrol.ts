import { Failure } from '@podwire/shared/failure/failure';
import { rpcAddress } from '@podwire/shared/runtime/setting';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import type { Logger } from '@podwire/shared/runtime/log';

import type { Context } from '../clients/services.js';
import { text, type Form } from '../command-line/forms.js';
import type { Flag, Input, Option, Verb } from '../command-line/verb.js';
import type { Report } from '../output/report.js';
import { moment } from '../output/words.js';
import { commonNameOf } from './certificate.js';
import { CertificateDirectory } from './certificate-directory.js';
import { ISSUER_OPTIONS, requestCertificate } from './certificate-request.js';
import { Enrolment, type Obtained } from './enrolment.js';

const HOST_AND_PORT: Form<string> = {
  placeholder: 'HOST:PORT',
  read: (input) =>
    rpcAddress.safeParse(input).success && !input.startsWith('unix:')
      ? { ok: true, value: input }
      : { ok: false, fault: 'is not HOST:PORT, such as 10.96.0.9:9651 or [fd00::9]:9651' },
};

const ADDRESS: Option<string> = {
  name: ISSUER_OPTIONS.address,
  form: HOST_AND_PORT,
  about: "podwire-ipam's listener for enrolment (PODWIRE_IPAM_ENROLMENT_LISTEN there)",
};
const CA_FILE: Option<string> = {
  name: ISSUER_OPTIONS.caFile,
  form: text('FILE'),
  about: "PEM file with the authorities that sign podwire-ipam's certificate; may be written later",
};
const TOKEN_FILE: Option<string> = {
  name: ISSUER_OPTIONS.tokenFile,
  form: text('FILE'),
  about: "token of the node's service account, with the audience podwire-ipam; read for each request",
};
const DIRECTORY: Option<string> = {
  name: '--directory',
  form: text('DIR'),
  about: 'where tls.crt, tls.key and ca.crt are written; made with mode 0700',
};
const FOLLOW: Flag = {
  name: '--follow',
  about: 'keep running: renew the certificate at half of its life, and when the authorities change',
};

export const certificatesEnrol: Verb = {
  name: 'certificates enrol',
  about: 'get the certificate of this node from podwire-ipam',
  details:
    'For the node’s pod of Kubernetes: an init container runs it once, a container runs it with --follow.\n' +
    'Retries without a limit unless --timeout is set. A certificate that is valid and cannot be renewed now is kept.',
  options: [ADDRESS, CA_FILE, TOKEN_FILE, DIRECTORY],
  flags: [FOLLOW],
  examples: [
    'certificates enrol --address 10.96.0.9:9651 --ca-file ca.crt --token-file token --directory /run/podwire/tls',
  ],
  run: async (input, context) => {
    const { timeoutMs, clock, process } = context;
    const issuer = {
      address: required(input, ADDRESS),
      caFile: required(input, CA_FILE),
      tokenFile: required(input, TOKEN_FILE),
    };
    const directory = new CertificateDirectory(required(input, DIRECTORY), clock);
    const options = { issuer, directory, request: requestCertificate, clock, random: process.random };
    const enrolment = (log: Logger) => new Enrolment({ ...options, log });
    if (input.has(FOLLOW)) return follow(enrolment, context);
    const deadlineMs = timeoutMs === undefined ? undefined : clock.nowMs() + timeoutMs;
    return reportOf(await enrolment(context.log).obtain(process.stopSignal(), deadlineMs), directory.path);
  },
};

async function follow(enrolment: (log: Logger) => Enrolment, { process, timeoutMs }: Context): Promise<Report> {
  if (timeoutMs !== undefined)
    throw new Failure('INVALID_REQUEST', `${FOLLOW.name}: contradicts --timeout, as it has no end; remove one of them`);
  await process.serve((log) => started(enrolment(log)));
  return { sections: [], data: () => ({}) };
}

function started(enrolment: Enrolment): Running {
  const stopped = new AbortController();
  const work = enrolment.follow(stopped.signal);
  return {
    stop: () => {
      stopped.abort();
      return work;
    },
  };
}

/** @throws Failure INVALID_REQUEST where the option is missing */
function required(input: Input, option: Option<string>): string {
  const value = input.get(option);
  if (value !== undefined) return value;
  throw new Failure('INVALID_REQUEST', `${option.name}: is missing; set it to ${option.about}`);
}

function reportOf({ held, state }: Obtained, directory: string): Report {
  const [node, until] = [commonNameOf(held.certificate), moment(new Date(held.life.untilMs))];
  return {
    sections: [
      {
        kind: 'fields',
        fields: [
          ['Node', node],
          ['Directory', directory],
          ['Certificate', state],
          ['Valid until', until],
        ],
      },
    ],
    data: () => ({ node, directory, certificate: state, validUntil: until }),
  };
}
