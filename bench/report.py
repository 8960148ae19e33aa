#!/usr/bin/env python3
"""Results as Markdown tables and SVG charts: medians of interleaved rounds, with the least and the most.

  bench/report.py     writes all of it again from bench/results/rounds.json
"""
import html, json, math, pathlib, re, statistics

README = pathlib.Path(__file__).resolve().parent.parent / 'README.md'
RESULTS = pathlib.Path(__file__).resolve().parent / 'results'
# The rows of the README, and their words there: what a site's visitors ask for most, and what costs more than with nginx.
SHOWN = {'hit': 'a cached page of 16 KB', 'hit-gzip': 'the same, gzip', 'clients-10000': 'the same, 10,000 clients',
         'tls': 'the same over TLS 1.3', 'h2': 'the same over HTTP/2', 'static-16k': 'a file of 16 KB',
         'proxy': 'a page from an HTTP upstream, not cached', 'php': 'a small response from PHP, not cached'}
NAMES = dict(yorozu='yorozu', nginx='nginx', varnish='Varnish', haproxy='HAProxy', apache='Apache', caddy='Caddy',
             floor='floor')
COLOURS = dict(yorozu='#c2410c', nginx='#15803d', varnish='#2563eb', haproxy='#7c3aed', apache='#be185d',
               caddy='#0891b2', floor='#9ca3af')
GROUPS = dict(pages='Pages from the cache', tls='TLS and HTTP/2', files='Files', gateways='Gateways',
              published='The published tests, with the published limits')
FONT = 'font-family="system-ui, sans-serif"'


def costs(rounds):
    """CPU in microseconds per request, of each round."""
    return [one['cpu'] / one['requests'] * 1e6 for one in rounds]


def errors(rounds):
    return sum(one['errors'] for one in rounds)


def p99(rounds):
    """Median in ms; `None` where the client does not tell it."""
    return None if rounds[0]['p99'] is None else statistics.median(one['p99'] for one in rounds)


def in_ms(number):
    return '-' if number is None else f'{number:.1f} ms'


def cost_cell(rounds, with_range=True):
    """Empty for a server that was not asked."""
    if rounds is None:
        return ''
    if errors(rounds):
        return 'failed'
    found = costs(rounds)
    spread = f' ({min(found):.1f}–{max(found):.1f})' if with_range else ''
    return f'{statistics.median(found):.1f}{spread}'


class Results:
    """What is measured: printed as it comes, and kept below `folder` with what earlier runs measured."""

    def __init__(self, folder, machine, rounds):
        self.folder, self.machine = folder, f'{machine}; {rounds} rounds'
        self.kept = {'rows': {}, 'lines': {}, 'charts': {}}
        if folder and (folder / 'rounds.json').exists():
            self.kept = json.loads((folder / 'rounds.json').read_text())
        print(f'{self.machine}\n')
        print('| scenario | CPU per request, us: nginx | yorozu | ratio | p99: nginx, yorozu | others |')
        print('| --- | --- | --- | --- | --- | --- |')

    def add(self, name, scenario, rounds):
        row = dict(group=scenario.group, title=scenario.title, bound=scenario.bound, machine=self.machine,
                   rounds=rounds)
        others = ', '.join(f'{NAMES[server]} {cost_cell(found)}' for server, found in rounds.items()
                           if server not in ('nginx', 'yorozu'))
        print(f'| {row["title"]} | {cost_cell(rounds.get("nginx"))} | {cost_cell(rounds["yorozu"])} | {ratio_cell(row)} | '
              f'{p99_cell(row)} | {others} |', flush=True)
        self.keep('rows', name, row)

    def add_line(self, name, lines):
        """`lines`: title, what nginx does, what yorozu does, what is wanted."""
        for title, nginx, yorozu, wanted in lines:
            print(f'| {title} | {nginx} | {yorozu} | {wanted} | | |', flush=True)
        self.keep('lines', name, dict(machine=self.machine, lines=lines))

    def add_chart(self, name, title, series):
        """`series`: for each server the points, each a number with the costs of its rounds."""
        for server, points in series.items():
            cells = ', '.join(f'{number:,}: {statistics.median(found):.1f}' for number, found in points)
            print(f'| {title}: {server} | {cells} | | | | |', flush=True)
        self.keep('charts', name, dict(machine=self.machine, title=title, series=series))

    def keep(self, kind, name, what):
        self.kept[kind][name] = what
        if self.folder:
            self.folder.mkdir(exist_ok=True)
            (self.folder / 'rounds.json').write_text(json.dumps(self.kept, indent=1) + '\n')
            write(self.kept, self.folder)


def ratio(row):
    """Of the CPU time to nginx's; `None` where work failed, for that cannot be compared with work that was done, or where nginx's
    is below what the kernel counts."""
    rounds = row['rounds']
    if 'nginx' not in rounds or errors(rounds['nginx']) or errors(rounds['yorozu']):
        return None
    nginx = statistics.median(costs(rounds['nginx']))
    return statistics.median(costs(rounds['yorozu'])) / nginx if nginx else None


def ratio_cell(row):
    found = ratio(row)
    if found is None:
        failed = [NAMES[name] for name in ('nginx', 'yorozu') if errors(row['rounds'].get(name, []))]
        if not failed:
            return ''
        return f'{" and ".join(failed)} failed'
    return f'**{found:.2f}**' + (f' (wanted: {row["bound"]})' if row['bound'] else '')


def p99_cell(row):
    nginx = in_ms(p99(row['rounds']['nginx'])) if 'nginx' in row['rounds'] else '-'
    return f'{nginx}, {in_ms(p99(row["rounds"]["yorozu"]))}'


def write(kept, folder):
    """The page of results with its charts, and the part of the README that shows them."""
    for group in GROUPS:
        rows = [row for row in kept['rows'].values() if row['group'] == group]
        if rows:
            (folder / f'{group}.svg').write_text(bars(GROUPS[group], rows))
    if kept['charts']:
        (folder / 'scaling.svg').write_text(lines(kept['charts'].values()))
    (folder / 'README.md').write_text(page(kept, folder))
    if SHOWN.keys() <= kept['rows'].keys():
        (folder / 'readme.svg').write_text(beside(kept))
        README.write_text(with_summary(kept))


MADE = re.compile(r'(<!-- made by bench/run -->\n).*?(<!-- end -->)', re.S)


def with_summary(kept):
    """The README with these results."""
    return MADE.sub(lambda match: match[1] + summary(kept) + match[2], README.read_text())


def is_up_to_date():
    """Whether the README and its chart show what is kept."""
    kept = json.loads((RESULTS / 'rounds.json').read_text())
    return MADE.search(README.read_text()) and with_summary(kept) == README.read_text() \
        and beside(kept) == (RESULTS / 'readme.svg').read_text()


def machines(kept):
    return sorted({what['machine'] for kind in kept.values() for what in kind.values()})


# What a machine's line says of a yorozu that was built with a profile of its clone, not the one that ships.
PROFILE = ', yorozu after `make profile`'


def conditions(kept):
    """How the rows of the README were measured. Those of a build that `make profile` trained are marked."""
    dates, machines = {}, set()
    for machine in (kept['rows'][name]['machine'] for name in SHOWN):
        date, rest = machine.replace(PROFILE, '').split(', ', 1)
        dates.setdefault(PROFILE in machine, set()).add(date)
        machines.add(rest)
    said = {False: 'Built with the profile that ships, as `make run` and the packages do where it fits the compiler; measured ', True: 'Rows marked \\*: built after `make profile`, measured '}
    lines = [said[has_profile] + ', '.join(sorted(days)) + '.' for has_profile, days in sorted(dates.items())]
    return ' '.join(lines) + '\n' + '; '.join(sorted(machines)) + '.\n'


def summary(kept):
    """The table of the README: yorozu beside nginx."""
    out = [conditions(kept), '\n| CPU per request, us | nginx | yorozu | ratio | p99: nginx, yorozu |\n| --- | --- | --- | --- | --- |\n']
    for name, title in SHOWN.items():
        row = kept['rows'][name]
        title += ' \\*' if PROFILE in row['machine'] else ''
        found = ratio(row)
        out.append(f'| {title} | {cost_cell(row["rounds"]["nginx"], False)} | {cost_cell(row["rounds"]["yorozu"], False)} '
                   f'| {"failed" if found is None else f"**{found:.2f}**"} | {p99_cell(row)} |\n')
    return ''.join(out)


def beside(kept):
    """The chart of the README: two bars for each of its rows, yorozu's as long as its part of nginx's; in light and dark."""
    width, left, room, y = 800, 310, 400, 46
    style = ('<style>text{font:13px system-ui,sans-serif;fill:#1f2328}.y{fill:#c2410c}.n{fill:#8c959f}'
             '@media(prefers-color-scheme:dark){text{fill:#e6edf3}.y{fill:#fb923c}.n{fill:#6e7681}}</style>')
    parts = [style, '<text x="16" y="24" font-weight="600">CPU per request beside nginx (grey), less is better</text>']
    for name, title in SHOWN.items():
        found = ratio(kept['rows'][name])
        if found is None:
            continue
        scale = room / 1.2
        parts += [f'<text x="{left - 10}" y="{y + 14}" text-anchor="end">{html.escape(title)}</text>',
                  f'<rect class="n" x="{left}" y="{y}" width="{scale:.0f}" height="8" rx="2"/>',
                  f'<rect class="y" x="{left}" y="{y + 9}" width="{max(found, 0.005) * scale:.0f}" height="8" rx="2"/>',
                  f'<text x="{left + room + 20}" y="{y + 14}">{found:.2f}</text>']
        y += 27
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" role="img" '
            'aria-label="CPU per request of yorozu as part of nginx\'s">\n' + '\n'.join(parts) + '\n</svg>\n')


def ordered(kept):
    return [row for group in GROUPS for row in kept['rows'].values() if row['group'] == group]


def page(kept, folder):
    out = ['# Measured by `make bench`\n\n', '\n'.join(machines(kept)) + '.\n\n',
           'CPU time per request in microseconds of the whole process tree, median (least–most). The floor is '
           '`bench/floor`: the bytes that yorozu sends, with one read and one write, or two where an upstream is asked. "failed": some answer was none, '
           'and what was done instead is not compared.\n\n']
    servers = [name for name in NAMES if any(name in row['rounds'] for row in kept['rows'].values())]
    for group, title in GROUPS.items():
        rows = [row for row in kept['rows'].values() if row['group'] == group]
        if not rows:
            continue
        out.append(f'## {title}\n\n![{title}]({group}.svg)\n\n')
        for what, cell in (('CPU, us', cost_cell), ('requests/s', rate_cell), ('p99', lambda r: in_ms(p99(r))),
                           ('answers that failed', errors)):
            here = [name for name in servers if any(name in row['rounds'] for row in rows)]
            out.append(f'| {what} | ' + ' | '.join(NAMES[name] for name in here) + ' | yorozu / nginx |\n'
                       + '| --- ' * (len(here) + 2) + '|\n')
            for row in rows:
                cells = [str(cell(row['rounds'][name])) if name in row['rounds'] else '' for name in here]
                last = ratio_cell(row) if cell is cost_cell else ''
                out.append(f'| {row["title"]} | ' + ' | '.join(cells) + f' | {last} |\n')
            out.append('\n')
    if kept['lines']:
        out.append('## Other work\n\n| | nginx | yorozu | |\n| --- | --- | --- | --- |\n')
        for what in kept['lines'].values():
            out += [f'| {" | ".join(map(str, line))} |\n' for line in what['lines']]
    if kept['charts']:
        out.append('\n## What a hit costs as things grow\n\n![scaling](scaling.svg)\n')
        for chart in kept['charts'].values():
            numbers = [number for number, _ in next(iter(chart['series'].values()))]
            out.append(f'\n| {chart["title"]} | ' + ' | '.join(f'{number:,}' for number in numbers) + ' |\n'
                       + '| --- ' * (len(numbers) + 1) + '|\n')
            for server, points in chart['series'].items():
                out.append(f'| {server} | ' + ' | '.join(f'{statistics.median(found):.1f} us' for _, found in points) + ' |\n')
    return ''.join(out)


def rate_cell(rounds):
    return f'{statistics.median(one["rate"] for one in rounds):,.0f}'


def text(x, y, words, size=12, anchor='start', weight='normal', fill='#111'):
    return (f'<text x="{x:.1f}" y="{y:.1f}" {FONT} font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
            f'fill="{fill}">{html.escape(words)}</text>')


def svg(width, height, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
            f'height="{height:.0f}">\n<rect width="100%" height="100%" fill="#fff"/>\n' + '\n'.join(parts) + '\n</svg>\n')


def bars(title, rows):
    """A bar for each server of each row, as long as its cost is beside the dearest of that row."""
    width, left, bar = 860, 90, 15
    room = width - left - 130
    parts, y = [text(16, 26, f'{title}: CPU per request, less is better', 15, weight='600')], 44
    for row in rows:
        y += 18
        parts.append(text(16, y, row['title'], 12, weight='600'))
        y += 8
        found = {name: costs(row['rounds'][name]) for name in NAMES if name in row['rounds']}
        scale = room / max(max(of) for of in found.values())
        for name, of in found.items():
            middle, least, most = statistics.median(of) * scale, min(of) * scale, max(of) * scale
            failed = errors(row['rounds'][name])
            parts.append(text(left - 8, y + bar - 4, NAMES[name], 11, 'end'))
            parts.append(f'<rect x="{left}" y="{y + 1}" width="{middle:.1f}" height="{bar - 3}" fill="{COLOURS[name]}"'
                         + (' opacity="0.3"' if failed else '') + '/>')
            at = y + (bar - 1) / 2
            parts.append(f'<path d="M{left + least:.1f} {at}H{left + most:.1f}M{left + least:.1f} {at - 3}v6'
                         f'M{left + most:.1f} {at - 3}v6" stroke="#111" stroke-width="1"/>')
            words = f'{statistics.median(of):.1f} us' + (f', {failed:,} answers failed' if failed else '')
            parts.append(text(left + most + 6, y + bar - 4, words, 11))
            y += bar
    return svg(width, y + 14, parts)


def lines(charts):
    """Small charts side by side: cost of a hit over a logarithmic count."""
    across, wide, high = 3, 290, 220
    parts = [text(16, 26, 'CPU of a hit in microseconds as things grow', 15, weight='600')]
    for index, chart in enumerate(charts):
        x0, y0 = 50 + index % across * wide, 70 + index // across * (high + 30)
        parts += line_chart(chart, x0, y0, wide - 70, high - 70)
    rows = math.ceil(len(list(charts)) / across)
    return svg(across * wide + 10, 60 + rows * (high + 30), parts)


def line_chart(chart, x0, y0, wide, high):
    numbers = [number for points in chart['series'].values() for number, _ in points]
    top = max(max(found) for points in chart['series'].values() for _, found in points) * 1.1
    low, span = math.log10(max(min(numbers), 1)), math.log10(max(numbers)) - math.log10(max(min(numbers), 1)) or 1
    place = lambda number, cost: (x0 + (math.log10(max(number, 1)) - low) / span * wide, y0 + high - cost / top * high)
    parts = [text(x0, y0 - 12, chart['title'], 12, weight='600'),
             f'<path d="M{x0} {y0}V{y0 + high}H{x0 + wide}" fill="none" stroke="#888"/>',
             text(x0 - 6, y0 + high, '0', 10, 'end'), text(x0 - 6, y0 + 10, f'{top:.0f}', 10, 'end')]
    for number in sorted(set(numbers)):
        parts.append(text(place(number, 0)[0], y0 + high + 14, f'{number:,}', 9, 'middle'))
    for number, (server, points) in enumerate(chart['series'].items()):
        middle = [place(n, statistics.median(found)) for n, found in points]
        colour = COLOURS.get(server, '#111')
        parts.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in middle)}" fill="none" '
                     f'stroke="{colour}" stroke-width="2"/>')
        for n, found in points:
            (x, least), (_, most) = place(n, min(found)), place(n, max(found))
            parts.append(f'<path d="M{x:.1f} {least:.1f}V{most:.1f}" stroke="{colour}"/>')
        parts.append(text(x0 + wide, y0 + high + 28 + 12 * number, server, 10, 'end', fill=colour))
    return parts


if __name__ == '__main__':
    write(json.loads((RESULTS / 'rounds.json').read_text()), RESULTS)
