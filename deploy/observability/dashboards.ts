import * as common from '@grafana/grafana-foundation-sdk/common';
import {
  DashboardBuilder,
  DashboardCursorSync,
  DatasourceVariableBuilder,
  QueryVariableBuilder,
  RowBuilder,
  type Dashboard,
} from '@grafana/grafana-foundation-sdk/dashboard';
import { PanelBuilder as HeatmapBuilder } from '@grafana/grafana-foundation-sdk/heatmap';
import { DataqueryBuilder as PromqlBuilder, PromQueryFormat } from '@grafana/grafana-foundation-sdk/prometheus';
import { PanelBuilder as TableBuilder } from '@grafana/grafana-foundation-sdk/table';
import { DataqueryBuilder as TraceqlBuilder, SearchTableType } from '@grafana/grafana-foundation-sdk/tempo';
import { PanelBuilder as TimeseriesBuilder } from '@grafana/grafana-foundation-sdk/timeseries';

import { IPAM } from './ipam-dashboard.js';
import { NODE } from './node-dashboard.js';
import type { DashboardDefinition, Panel, Query } from './panels.js';
import { POD_SETUP } from './pod-setup-dashboard.js';

/** Every dashboard. */
export const DASHBOARDS: readonly DashboardDefinition[] = [POD_SETUP, IPAM, NODE];

const PROMETHEUS = { type: 'prometheus', uid: '${datasource}' };
const TEMPO = { type: 'tempo', uid: '${tempo}' };

/** Rows of Grafana's grid. */
const PANEL_HEIGHT = 8;
const TRACES_LIMIT = 20;

/** A dashboard as every Grafana since 9 reads it from a file; the second schema needs Grafana 12. */
export function grafanaDashboard({ uid, title, rows }: DashboardDefinition): Dashboard {
  const builder = new DashboardBuilder(title)
    .uid(uid)
    .tags(['podwire'])
    .timezone('browser')
    .time({ from: 'now-1h', to: 'now' })
    .refresh('30s')
    .tooltip(DashboardCursorSync.Crosshair)
    .withVariable(new DatasourceVariableBuilder('datasource').label('Metrics').type('prometheus'))
    .withVariable(new DatasourceVariableBuilder('tempo').label('Traces').type('tempo'))
    .withVariable(
      new QueryVariableBuilder('instance')
        .label('Node')
        .datasource(PROMETHEUS)
        .query('label_values(podwire_plugin_commands_in_flight, instance)')
        .multi(true)
        .includeAll(true)
        .allValue('.*'),
    );
  for (const row of rows) {
    builder.withRow(new RowBuilder(row.title));
    for (const panel of row.panels) builder.withPanel(panelBuilder(panel));
  }
  return builder.build();
}

function panelBuilder(panel: Panel): TimeseriesBuilder | HeatmapBuilder | TableBuilder {
  const { kind = 'lines' } = panel;
  switch (kind) {
    case 'heatmap':
      return withQueries(framed(new HeatmapBuilder(), panel).datasource(PROMETHEUS), panel, PromQueryFormat.Heatmap);
    case 'table':
      return withQueries(framed(new TableBuilder(), panel).datasource(PROMETHEUS), panel, PromQueryFormat.Table);
    case 'traces':
      return framed(new TableBuilder(), panel).datasource(TEMPO).withTarget(traceql(panel.queries[0]));
    case 'lines':
      return withQueries(timeseries(panel).fillOpacity(0), panel, PromQueryFormat.TimeSeries);
    case 'stack': {
      const stacked = new common.StackingConfigBuilder().mode(common.StackingMode.Normal);
      return withQueries(timeseries(panel).fillOpacity(60).stacking(stacked), panel, PromQueryFormat.TimeSeries);
    }
  }
}

function framed<Builder extends HeatmapBuilder | TableBuilder | TimeseriesBuilder>(
  builder: Builder,
  { title, description, width = 12 }: Panel,
): Builder {
  builder.title(title).description(description).span(width).height(PANEL_HEIGHT);
  return builder;
}

function timeseries(panel: Panel): TimeseriesBuilder {
  const legend = new common.VizLegendOptionsBuilder()
    .displayMode(common.LegendDisplayMode.List)
    .placement(common.LegendPlacement.Bottom)
    .showLegend(true);
  return framed(new TimeseriesBuilder(), panel)
    .datasource(PROMETHEUS)
    .unit(panel.unit ?? 'short')
    .min(0)
    .lineWidth(1)
    .legend(legend)
    .tooltip(new common.VizTooltipOptionsBuilder().mode(common.TooltipDisplayMode.Multi));
}

function withQueries<Builder extends HeatmapBuilder | TableBuilder | TimeseriesBuilder>(
  builder: Builder,
  { queries, hasExemplars = false }: Panel,
  format: PromQueryFormat,
): Builder {
  for (const { expression, legend } of queries) {
    const query = new PromqlBuilder().expr(expression).format(format).exemplar(hasExemplars);
    if (legend !== undefined) query.legendFormat(legend);
    builder.withTarget(format === PromQueryFormat.Table ? query.instant() : query);
  }
  return builder;
}

function traceql(query: Query | undefined): TraceqlBuilder {
  return new TraceqlBuilder()
    .queryType('traceql')
    .query(query?.expression ?? '')
    .limit(TRACES_LIMIT)
    .tableType(SearchTableType.Traces);
}

/** A query of a panel, as it is sent when all nodes are shown. */
export interface PanelQuery {
  readonly dashboard: string;
  readonly panel: string;
  readonly language: 'promql' | 'traceql';
  readonly expression: string;
}

/** @param interval - in place of `$__rate_interval` */
export function panelQueries(interval: string): PanelQuery[] {
  return DASHBOARDS.flatMap(({ title, rows }) =>
    rows.flatMap(({ panels }) =>
      panels.flatMap(({ title: panel, kind, queries }) =>
        queries.map(({ expression }) => ({
          dashboard: title,
          panel,
          language: kind === 'traces' ? 'traceql' : 'promql',
          expression: expression.replaceAll('$__rate_interval', interval).replaceAll('$instance', '.*'),
        })),
      ),
    ),
  );
}
